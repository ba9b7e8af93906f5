//! What surrounds every request: its correlation id, a log line, its metrics, and an answer even if a handler panics.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use admit::{Clock, MonotonicClock};
use admit_tower::{CorrelationId, Problem, X_CORRELATION_ID};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use futures::FutureExt;
use http::{HeaderValue, StatusCode};
use tracing::{Instrument, info_span};

use super::App;
use crate::keys::Caller;

/// Who called, for the log line: authentication finds it out further in, and puts it into the response.
#[derive(Clone)]
pub(super) struct Known(pub(super) Caller);

pub(super) async fn with_context(State(app): State<App>, mut request: Request, next: Next) -> Response {
    // A client's id is taken if it is short and visible ASCII; what else it sent is not repeated anywhere.
    let sent = request.headers().get(X_CORRELATION_ID).and_then(|value| value.to_str().ok());
    let id = sent.and_then(CorrelationId::new).unwrap_or_else(CorrelationId::random);
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = route.unwrap_or_else(|| "unmatched".to_owned());
    let span = info_span!("request", correlation_id = %id, method = %request.method(), route);
    request.extensions_mut().insert(id.clone());

    let clock = MonotonicClock::start();
    let started = clock.now();
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind().instrument(span.clone()).await;
    let mut response = answer.unwrap_or_else(|_| {
        let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR)
            .detail("The request failed. The cause is in the server's log.")
            .with("error", "internal")
            .with("correlation_id", id.as_str());
        problem.into_response()
    });
    let (status, took) = (response.status(), clock.now().since(started));
    span.in_scope(|| log(&response, status, took));
    app.metrics.answered(&route, status.as_u16(), took);
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(X_CORRELATION_ID, value);
    }
    response
}

fn log(response: &Response, status: StatusCode, took: Duration) {
    let tenant = response.extensions().get::<Known>().map(|known| known.0.tenant.to_string());
    let (status, took_ms) = (status.as_u16(), took.as_secs_f64() * 1e3);
    if status >= 500 {
        tracing::warn!(status, took_ms, tenant, "answered");
    } else {
        tracing::info!(status, took_ms, tenant, "answered");
    }
}
