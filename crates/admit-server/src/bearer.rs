//! Who may ask for decisions.

use std::sync::Arc;

use admit_tower::Problem;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::policy::Policy;

/// The key in an `Authorization` header of the Bearer scheme.
pub(crate) fn key(authorization: &HeaderValue) -> Option<&[u8]> {
    let (scheme, key) = authorization.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

/// Has requests pass that have one of the policy's decision tokens, or all if the policy has none.
pub(crate) fn guard<S: Clone + Send + Sync + 'static>(router: Router<S>, policy: &Arc<Policy>) -> Router<S> {
    match policy.server.decisions.tokens.is_empty() {
        true => router,
        false => router.layer(from_fn_with_state(Arc::clone(policy), check)),
    }
}

/// The same before gRPC services, whose callers are told in gRPC.
pub(crate) fn guard_calls(router: Router, policy: &Arc<Policy>) -> Router {
    match policy.server.decisions.tokens.is_empty() {
        true => router,
        false => router.layer(from_fn_with_state(Arc::clone(policy), check_call)),
    }
}

/// Why a request may not ask for decisions; nothing if it may.
pub(crate) fn refusal(policy: &Policy, headers: &HeaderMap) -> Option<Problem> {
    let may_ask = policy.server.decisions.tokens.is_empty() || may_ask(policy, headers);
    (!may_ask).then(|| unknown("send a decision token as a bearer token"))
}

async fn check(State(policy): State<Arc<Policy>>, request: Request, next: Next) -> Response {
    match refusal(&policy, request.headers()) {
        None => next.run(request).await,
        Some(refusal) => refusal.into_response(),
    }
}

async fn check_call(State(policy): State<Arc<Policy>>, request: Request, next: Next) -> Response {
    match refusal(&policy, request.headers()) {
        None => next.run(request).await,
        Some(refusal) => refusal.into_response_to(request.headers()),
    }
}

fn may_ask(policy: &Policy, headers: &HeaderMap) -> bool {
    token(headers).is_some_and(|token| policy.server.decisions.tokens.accept(token))
}

/// The answer to who has shown nothing that is known; `detail` says what to send.
pub(crate) fn unknown(detail: &'static str) -> Problem {
    let problem = Problem::new(StatusCode::UNAUTHORIZED).detail(detail).with("error", "unauthorized");
    problem.header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
}

/// The one that a request was sent with. A header that stands twice is no token.
pub(crate) fn token(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => key(value),
        _ => None,
    }
}
