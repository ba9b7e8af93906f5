//! What operators ask: whether the process lives, whether it can decide, what it decided, how it stands.

mod status;
mod writes;

use admit::Causes;
use admit_tower::Rejection;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::health;
use crate::reload::Running;
pub use status::{DecisionTotals, PolicyStatus, Status, StoreStatus};

/// `/healthz`, `/readyz`, `/metrics`, `/status`; and what writes, for who has an admin token.
pub fn router(running: Running) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status::status))
        .route("/reload", post(writes::reload))
        .route("/buckets/reset", post(writes::reset))
        .with_state(running)
}

async fn readyz(State(running): State<Running>) -> Response {
    match health::store(&running).await {
        Ok(()) => "ready\n".into_response(),
        Err(cause) => {
            tracing::error!(kind = %cause.kind(), error = %Causes(&cause), "not ready");
            let problem = Rejection::Unavailable.problem();
            problem.with("store", cause.kind().as_str()).detail(health::advice(cause.kind())).into_response()
        }
    }
}

/// Asks the store first, so that a scrape tells how it is and not how it was.
async fn metrics(State(running): State<Running>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let _ = health::store(&running).await; // The metrics tell.
    running.metrics().leases.holds(&running.in_force().leased);
    running.metrics().store.counts(&running.in_force().store);
    match running.metrics().encode() {
        Ok(text) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
