//! One id for a request, in its response, its problem document and its log lines; and a limit on the time it may take.

use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode};
use tracing::Instrument;
use uuid::Uuid;

use super::problem::Problem;
use crate::metrics::Metrics;
use crate::random;

/// Carries the correlation id, both ways.
pub const CORRELATION_ID: HeaderName = HeaderName::from_static("x-correlation-id");

/// The longest id that is taken over from a client.
const MAX_CLIENT_ID_LEN: usize = 64;

/// How long a request may take, its body included.
const REQUEST_TIME_LIMIT: Duration = Duration::from_secs(30);

/// The outermost layer.
pub async fn correlate(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    let id = correlation_id(&request);
    let instance = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str).to_owned();
    let span = tracing::info_span!("request", correlation_id = %id, method = %request.method(), route);

    let timer = metrics.start_request();
    let handled = tokio::time::timeout(REQUEST_TIME_LIMIT, next.run(request)).instrument(span.clone()).await;
    let mut response = handled.unwrap_or_else(|_| {
        let detail = "the request was not complete in time";
        Problem::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", detail).into_response()
    });
    if let Some(problem) = response.extensions().get::<Problem>() {
        let allow = response.headers().get(http::header::ALLOW).cloned();
        response = problem.render(&instance, &id);
        if let Some(allow) = allow {
            response.headers_mut().insert(http::header::ALLOW, allow);
        }
    }
    metrics.end_request(timer, &route, response.status());
    span.in_scope(|| tracing::info!(status = response.status().as_u16(), "answered"));
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(CORRELATION_ID, id);
    }
    response
}

/// The client's, if it is short and plain, else a new one.
fn correlation_id(request: &Request) -> String {
    let of_client = request.headers().get(CORRELATION_ID).and_then(|id| id.to_str().ok()).filter(|id| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        (1..=MAX_CLIENT_ID_LEN).contains(&id.len()) && id.bytes().all(plain)
    });
    of_client.map_or_else(|| random::uuid().unwrap_or(Uuid::nil()).to_string(), ToOwned::to_owned)
}
