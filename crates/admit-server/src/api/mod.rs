//! The decision API: HTTP and JSON for services in any language.
//!
//! `POST /v1/take` charges on budgets, all or nothing, `/v1/peek` looks and `/v1/refund` gives back;
//! `/v1/idempotency/claim`, `renew`, `complete` and `release` run each key once. `/openapi.json` tells the rest.

mod charges;
mod idempotency;
mod openapi;
mod problems;
mod reading;
mod take;
mod text;
mod ticket;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::bearer;
use crate::engine::Decider;
use crate::metrics::Metrics;
use crate::policy::Policy;

pub use openapi::document;
pub(crate) use problems::Refusal;
pub(crate) use reading::{read, typed};
pub(crate) use text::present;

/// What the handlers share.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    decider: Arc<Decider>,
    metrics: Metrics,
}

/// `/v1/…` for those who may ask, and `/openapi.json` for everybody.
pub(crate) fn router(decider: Arc<Decider>, metrics: Metrics) -> Router {
    let policy: Arc<Policy> = decider.policy.clone();
    let document = document(&policy);
    let calls = Router::new()
        .route("/v1/take", post(take::take))
        .route("/v1/peek", post(take::peek))
        .route("/v1/refund", post(take::refund))
        .route("/v1/idempotency/claim", post(idempotency::claim))
        .route("/v1/idempotency/renew", post(idempotency::renew))
        .route("/v1/idempotency/complete", post(idempotency::complete))
        .route("/v1/idempotency/release", post(idempotency::release))
        .method_not_allowed_fallback(problems::method_not_allowed);
    bearer::guard(calls, &policy)
        .with_state(Api { decider, metrics })
        .route("/openapi.json", get(async move || axum::Json(document)))
}
