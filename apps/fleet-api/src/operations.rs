//! `/healthz`, `/readyz` and `/metrics`.

use std::time::Duration;

use admit::{BudgetStore, Causes, Charge, Key, TimeSource};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};

use crate::http::problem::Problem;
use crate::metrics::Metrics;
use crate::secrets::persistence::SECRET_READ_NODE;
use crate::settings::ReadBudgets;

/// How long the store may take to answer a readiness probe.
const PROBE_TIME_LIMIT: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct Operations<S> {
    store: S,
    time: TimeSource,
    budgets: ReadBudgets,
    metrics: Metrics,
}

pub(crate) fn router<S: BudgetStore>(
    store: S,
    time: TimeSource,
    budgets: ReadBudgets,
    metrics: Metrics,
) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready::<S>))
        .route("/metrics", get(encode::<S>))
        .with_state(Operations { store, time, budgets, metrics })
}

/// Ready is who can decide: asks the store about a bucket without taking from it. Whether the sweep runs plays no part.
async fn ready<S: BudgetStore>(State(operations): State<Operations<S>>) -> Response {
    let probe = [Charge::one(SECRET_READ_NODE, Key::hashed("readiness probe"), operations.budgets.node)];
    let peeked = operations.store.peek(&probe, operations.time.now());
    match tokio::time::timeout(PROBE_TIME_LIMIT, peeked).await {
        Ok(Ok(_)) => "ready\n".into_response(),
        failed => {
            let cause = match &failed {
                Ok(Err(error)) => Causes(error).to_string(),
                _ => "no answer in time".to_owned(),
            };
            tracing::warn!(cause, "not ready: the store does not answer");
            let detail = "the store does not answer";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", detail).into_response()
        }
    }
}

async fn encode<S: BudgetStore>(State(operations): State<Operations<S>>) -> Result<Response, Problem> {
    let mut response =
        operations.metrics.encode().map_err(|error| Problem::internal(&error))?.into_response();
    let text = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    Ok(response)
}
