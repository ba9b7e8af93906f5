//! What operators ask: whether the process lives, whether it can decide, what it decided.

use admit::{BudgetStore, Causes, Charge, Key, Now};
use admit_tower::Rejection;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::reload::Running;

/// `/healthz`, `/readyz` and `/metrics`.
pub fn router(running: Running) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(tell))
        .with_state(running)
}

async fn readyz(State(running): State<Running>) -> Response {
    let in_force = running.in_force();
    // A look at a bucket that nobody has: it writes nothing.
    let probe = in_force.policy.budgets.first();
    let probe = probe.map(|budget| Charge::one(budget.scope.clone(), Key::hashed("readyz"), budget.budget));
    let Some(probe) = probe else { return "ready\n".into_response() };
    match in_force.store.peek(&[probe], Now::Store).await {
        Ok(_) => "ready\n".into_response(),
        Err(error) => {
            tracing::error!(error = %Causes(&error), "not ready");
            Rejection::Unavailable.problem().into_response()
        }
    }
}

async fn tell(State(running): State<Running>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match running.metrics().encode() {
        Ok(text) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
