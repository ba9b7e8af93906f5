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

use std::ops::ControlFlow;
use std::sync::Arc;

use admit_listen::Answering;
use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use axum::routing::get;
use http::Method;

use crate::bearer;
use crate::engine::Decider;
use crate::metrics::Metrics;
use crate::policy::Policy;

pub use openapi::document;
pub(crate) use problems::Refusal;
pub(crate) use reading::{read, typed};
pub(crate) use text::present;

/// What the calls share.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    decider: Arc<Decider>,
    metrics: Metrics,
}

/// The calls, by their paths. They are found without a router, whose layers would cost as much as a take.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    api: Api,
    /// What stands before each path.
    prefix: String,
}

/// `/openapi.json`, for everybody.
pub(crate) fn router(policy: &Policy) -> Router {
    let document = document(policy);
    Router::new().route("/openapi.json", get(async move || axum::Json(document)))
}

/// The answer of a call. Its future is large, so that it is made where it stays: a function that took it would copy it.
macro_rules! answered {
    ($call:path) => {
        |api, request| Box::pin(async move { $call(api, request).await.into_response() })
    };
}

impl Calls {
    /// Those behind this prefix.
    pub(crate) fn new(decider: Arc<Decider>, metrics: Metrics, prefix: &str) -> Self {
        Self { api: Api { decider, metrics }, prefix: prefix.to_owned() }
    }

    /// The answer to a call of one who may ask; a request that is none comes back.
    pub(crate) fn answer(&self, request: Request) -> ControlFlow<Answering, Request> {
        let Some(path) = request.uri().path().strip_prefix(self.prefix.as_str()) else {
            return ControlFlow::Continue(request);
        };
        let call: fn(Api, Request) -> Answering = match path {
            "/v1/take" => answered!(take::take),
            "/v1/peek" => answered!(take::peek),
            "/v1/refund" => answered!(take::refund),
            "/v1/idempotency/claim" => answered!(idempotency::claim),
            "/v1/idempotency/renew" => answered!(idempotency::renew),
            "/v1/idempotency/complete" => answered!(idempotency::complete),
            "/v1/idempotency/release" => answered!(idempotency::release),
            _ => return ControlFlow::Continue(request),
        };
        ControlFlow::Break(match bearer::refusal(&self.api.decider.policy, request.headers()) {
            Some(refusal) => Box::pin(std::future::ready(refusal.into_response())),
            None if *request.method() != Method::POST => Box::pin(problems::method_not_allowed()),
            None => call(self.api.clone(), request),
        })
    }
}
