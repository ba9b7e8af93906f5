//! What operators ask: whether the process lives, whether it can work, and what it did.

use admit::BudgetStore;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::{App, unavailable};

/// The process answers.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// The store answers, for jobs and for budgets: either has connections of its own.
pub(super) async fn readyz(State(app): State<App>) -> Response {
    if let Err(cause) = app.storage.open_jobs().await {
        return unavailable(&cause);
    }
    match app.store.peek(&[app.limits.probe()], app.time.now()).await {
        Ok(_) => "ready\n".into_response(),
        Err(cause) => unavailable(&cause),
    }
}

/// What happened, for Prometheus.
pub(super) async fn metrics(State(app): State<App>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match app.metrics.encode() {
        Ok(text) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
