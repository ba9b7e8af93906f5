//! What an error looks like to a client: `application/problem+json` (RFC 9457), with a machine-readable `code`.
//!
//! A handler answers with a [`Problem`]; the [correlation layer](super::correlation) adds the path and the correlation
//! id, and writes the body.

use std::error::Error;

use admit::Causes;
use admit_tower::problem_type;
use axum::response::{IntoResponse, Response};
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};

/// An error, without the members that only the whole request knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    retry_after_seconds: Option<u64>,
    dimension: Option<&'static str>,
}

impl Problem {
    /// An error with a status, a code that programs go by and a detail that people read. The detail says nothing about
    /// the inside of the service.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), retry_after_seconds: None, dimension: None }
    }

    /// 400.
    pub fn bad_request(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail)
    }

    /// 401.
    pub fn unauthorized(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, code, detail)
    }

    /// 404.
    pub fn not_found(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, detail)
    }

    /// 413.
    pub fn too_large(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, code, detail)
    }

    /// 429.
    pub fn too_many(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, code, detail)
    }

    /// 500 with nothing of the cause, which goes to the log. Call it within the request, so that the log line has its
    /// correlation id.
    pub fn internal(cause: &dyn Error) -> Self {
        tracing::error!(cause = %Causes(cause), "the request failed");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the service could not answer; try again later",
        )
    }

    /// With `Retry-After`, in seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: Option<u64>) -> Self {
        self.retry_after_seconds = seconds;
        self
    }

    /// With the member `dimension`.
    #[must_use]
    pub fn dimension(mut self, dimension: &'static str) -> Self {
        self.dimension = Some(dimension);
        self
    }

    /// The code.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The whole response.
    pub(super) fn render(&self, instance: &str, correlation_id: &str) -> Response {
        let mut problem = admit_tower::Problem::new(self.status).detail(self.detail.clone());
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            problem = problem.kind(problem_type::QUOTA_EXCEEDED, "Quota exceeded");
        }
        problem =
            problem.with("instance", instance).with("correlation_id", correlation_id).with("code", self.code);
        if let Some(dimension) = self.dimension {
            problem = problem.with("dimension", dimension);
        }
        if let Some(seconds) = self.retry_after_seconds {
            problem = problem.header(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            problem = problem.header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        problem.into_response()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
