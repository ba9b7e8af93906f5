//! What the decision API answers to a request that it cannot take.

use admit_tower::{CorrelationId, Problem, Rejected, Rejection, problem_type};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};

use super::Api;

/// A call that is wrong in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfit {
    /// 400 if the call has not the form that it should have; 422 if it has, and means nothing by this policy.
    status: StatusCode,
    /// Where, as a JSON pointer (RFC 6901). The empty one is the whole body.
    pub(super) pointer: String,
    /// What is wrong, and what would be right.
    pub(super) detail: String,
}

impl Unfit {
    /// It has not the form.
    pub(super) fn form(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, pointer: pointer.into(), detail: detail.into() }
    }

    /// It has the form, and means nothing.
    pub(super) fn meaning(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, ..Self::form(pointer, detail) }
    }

    fn problem(self) -> Problem {
        let place = if self.pointer.is_empty() { "the body" } else { &self.pointer };
        let error = if self.status == StatusCode::BAD_REQUEST { "bad_request" } else { "unprocessable" };
        Problem::new(self.status)
            .detail(format!("{place}: {}", self.detail))
            .with("error", error)
            .with("pointer", self.pointer)
    }
}

/// Why a call is answered with a problem.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The call is wrong.
    Unfit(Unfit),
    /// The body is not JSON by its content type.
    MediaType,
    /// The body could not be read, or a key is not free.
    Rejection(Rejection),
    /// The ticket has no more say.
    TicketLost,
    /// The limiter's own.
    Problem(Box<Problem>),
}

impl From<Unfit> for Refusal {
    fn from(unfit: Unfit) -> Self {
        Self::Unfit(unfit)
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        Self::Rejection(rejection)
    }
}

impl Api {
    /// The limiter's answer, as its layer would give it.
    pub(super) fn rejected(&self, parts: &Parts, rejected: Rejected) -> Refusal {
        Refusal::Problem(Box::new(self.decider.limiter.problem(parts, rejected)))
    }

    /// The store could not answer; the log has the cause under `id`.
    pub(super) fn unavailable(&self, parts: &Parts, id: CorrelationId) -> Refusal {
        self.rejected(parts, *Rejected::failed(Rejection::Unavailable, id))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let problem = match self {
            Self::Unfit(unfit) => unfit.problem(),
            Self::MediaType => Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE)
                .detail("send JSON, with Content-Type: application/json")
                .with("error", "unsupported_media_type"),
            Self::Rejection(rejection) => rejection.problem(),
            Self::TicketLost => Problem::new(StatusCode::CONFLICT)
                .kind(problem_type::IDEMPOTENCY_TICKET_LOST, "Ticket lost")
                .detail("the ticket no longer holds its key: its lease has lapsed, or it was used before")
                .with("error", "idempotency_ticket_lost"),
            Self::Problem(problem) => *problem,
        };
        problem.into_response()
    }
}

pub(super) async fn method_not_allowed() -> Response {
    let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED).detail("this is asked with POST");
    let problem = problem.with("error", "method_not_allowed");
    problem.header(header::ALLOW, HeaderValue::from_static("POST")).into_response()
}
