//! What goes wrong between the gateway and an upstream, and what the client is told.

use std::error::Error;
use std::io;

use admit_tower::{Problem, Rejection};
use axum::body::Body;
use http::request::Parts;
use http::{Response, StatusCode};

use super::target::Unanswered;

/// Why an exchange came to no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    #[error("the upstream cannot be connected to")]
    Connect,
    #[error("the upstream did not accept a connection in time")]
    ConnectTime,
    #[error("the upstream broke off")]
    BrokeOff,
    #[error("the upstream switched to another protocol, or coded its response, as nobody had asked it to")]
    Nonsense,
    #[error("the upstream refused the request unread")]
    Refused,
    #[error("the upstream did not begin to answer in time")]
    HeadTime,
    #[error("nothing of a body came or went for too long")]
    IdleTime,
    #[error("the exchange took too long")]
    TotalTime,
    #[error("the client sent nothing more of its request")]
    ClientSlow,
    #[error("the client broke off")]
    ClientGone,
    #[error("the response ended before the request")]
    Over,
}

impl Failure {
    /// Why a request was not answered.
    pub(super) fn of(error: &Unanswered) -> Self {
        let is_connect = match error {
            Unanswered::Connect(_) => true,
            Unanswered::BrokeOff(_) => false,
            Unanswered::Client(error) => error.is_connect(),
        };
        match (is_connect, is_timeout(error)) {
            (true, true) => Self::ConnectTime,
            (true, false) => Self::Connect,
            (false, _) if causes(error).any(is_refusal) => Self::Refused,
            (false, _) => Self::BrokeOff,
        }
    }

    /// There is no connection to the upstream.
    pub(super) fn is_before_the_request(self) -> bool {
        matches!(self, Self::Connect | Self::ConnectTime)
    }

    /// As metrics call it, if it is the upstream's failure.
    pub(super) fn kind(self) -> Option<&'static str> {
        match self {
            Self::Connect => Some("connect"),
            Self::ConnectTime => Some("connect_time"),
            Self::BrokeOff | Self::Nonsense => Some("broke_off"),
            Self::Refused => Some("refused"),
            Self::HeadTime => Some("head_time"),
            Self::IdleTime => Some("idle_time"),
            Self::TotalTime => Some("total_time"),
            Self::ClientSlow | Self::ClientGone | Self::Over => None,
        }
    }

    /// What the client is told where the response has not begun.
    pub(super) fn problem(self) -> Problem {
        let (status, detail, error) = match self {
            Self::Connect | Self::BrokeOff | Self::Nonsense | Self::Refused => (
                StatusCode::BAD_GATEWAY,
                "the service behind this gateway cannot be reached, or broke off",
                "bad_gateway",
            ),
            Self::ConnectTime | Self::HeadTime | Self::IdleTime | Self::TotalTime => (
                StatusCode::GATEWAY_TIMEOUT,
                "the service behind this gateway did not answer in time",
                "gateway_timeout",
            ),
            Self::ClientSlow => {
                (StatusCode::REQUEST_TIMEOUT, "the request's body did not arrive in time", "request_timeout")
            }
            Self::ClientGone | Self::Over => {
                (StatusCode::BAD_REQUEST, "the request's body cannot be read to its end", "bad_request")
            }
        };
        problem(status, detail, error)
    }

    pub(super) fn response(self) -> Response<Body> {
        self.problem().into_response()
    }
}

/// What a client is told of a response that was read for a record, and whose body broke off; of any other rejection what it
/// is told anyway.
pub(crate) fn of_a_record(_: &Parts, rejection: &Rejection) -> Problem {
    match rejection {
        Rejection::AnswerBroken => Failure::BrokeOff.problem(),
        rejection => rejection.problem(),
    }
}

pub(super) fn problem(status: StatusCode, detail: &'static str, error: &'static str) -> Problem {
    Problem::new(status).detail(detail).with("error", error)
}

/// An error and what it comes from.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| Error::source(*error))
}

fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    let is_timeout = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    causes(error).any(|error| error.downcast_ref().is_some_and(is_timeout))
}

/// Whether the upstream says that it has processed nothing of the request (RFC 9113, section 8.7): by REFUSED_STREAM, or by
/// a GOAWAY that comes to a stream beyond the last it takes.
fn is_refusal(error: &(dyn Error + 'static)) -> bool {
    let says = |error: &h2::Error| {
        let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        let going = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        error.is_remote() && (refused || going)
    };
    error.downcast_ref().is_some_and(says)
}
