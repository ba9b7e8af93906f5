//! Who may ask for decisions.

use std::sync::Arc;

use admit_tower::Problem;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::policy::Policy;

/// The key in an `Authorization` header of the Bearer scheme.
pub(crate) fn key(authorization: &HeaderValue) -> Option<&[u8]> {
    let (scheme, key) = authorization.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

/// Lets a request pass that has one of the policy's decision tokens, or any if the policy has none.
pub(crate) async fn check(State(policy): State<Arc<Policy>>, request: Request, next: Next) -> Response {
    let tokens = &policy.server.decisions.tokens;
    if tokens.is_empty() || token(request.headers()).is_some_and(|token| tokens.accept(token)) {
        return next.run(request).await;
    }
    let problem = Problem::new(StatusCode::UNAUTHORIZED).detail("send a decision token as a bearer token");
    let problem =
        problem.with("error", "unauthorized").header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    problem.into_response_to(request.headers())
}

/// The one that a request was sent with. A header that stands twice is no token.
pub(crate) fn token(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => key(value),
        _ => None,
    }
}
