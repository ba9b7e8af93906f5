//! What operators ask: whether the process lives, whether it can decide, what it decided.

use admit::{BudgetStore, Causes, Charge, Key, Now};
use admit_store::AnyStore;
use admit_tower::Rejection;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::metrics::Metrics;
use crate::policy::Policy;

#[derive(Clone)]
struct Admin {
    store: AnyStore,
    metrics: Metrics,
    probe: Option<Charge>,
}

/// `/healthz`, `/readyz` and `/metrics`.
pub fn router(policy: &Policy, store: AnyStore, metrics: Metrics) -> Router {
    // A look at a bucket that nobody has: it writes nothing.
    let probe = policy.budgets.first();
    let probe = probe.map(|budget| Charge::one(budget.scope.clone(), Key::hashed("readyz"), budget.budget));
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(tell))
        .with_state(Admin { store, metrics, probe })
}

async fn readyz(State(admin): State<Admin>) -> Response {
    let Some(probe) = admin.probe else { return "ready\n".into_response() };
    match admin.store.peek(&[probe], Now::Store).await {
        Ok(_) => "ready\n".into_response(),
        Err(error) => {
            tracing::error!(error = %Causes(&error), "not ready");
            Rejection::Unavailable.problem().into_response()
        }
    }
}

async fn tell(State(admin): State<Admin>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match admin.metrics.encode() {
        Ok(text) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
