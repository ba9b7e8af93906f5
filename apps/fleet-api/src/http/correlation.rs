//! One id for a request, in its response, its problem document and its log lines; and a limit on the time it may take.

use std::time::Duration;

use admit_tower::{CorrelationId, X_CORRELATION_ID};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode};
use tracing::Instrument;

use super::problem::Problem;
use crate::metrics::Metrics;

/// How long a request may take, its body included.
const REQUEST_TIME_LIMIT: Duration = Duration::from_secs(30);

/// The outermost layer.
pub async fn correlate(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    // A client's id is taken over if it is short and visible ASCII.
    let sent = request.headers().get(X_CORRELATION_ID).and_then(|value| value.to_str().ok());
    let id = sent.and_then(CorrelationId::new).unwrap_or_else(CorrelationId::random);
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
        response = problem.render(&instance, id.as_str());
        if let Some(allow) = allow {
            response.headers_mut().insert(http::header::ALLOW, allow);
        }
    }
    metrics.end_request(timer, &route, response.status());
    span.in_scope(|| tracing::info!(status = response.status().as_u16(), "answered"));
    if let Ok(id) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(X_CORRELATION_ID, id);
    }
    response
}
