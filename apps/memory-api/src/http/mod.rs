//! The HTTP side: routes, and what every request goes through.
//!
//! In this order: a correlation id, the caller's key, the shape of the request, its budgets and its idempotency key, and
//! then the handler. Whatever turns a request away says so in a problem document.

mod auth;
mod context;
mod ingest;
mod jobs;
mod lists;
mod operations;
mod page;
mod query;
mod shape;

use std::sync::Arc;

use admit::idempotency::Terms;
use admit::{Causes, TimeSource};
use admit_store::AnyStore;
use admit_tower::{
    BudgetLayer, IdempotencyLayer, Idempotent, IfMissing, JsonPointer, Limiter, Problem, Quota,
};
use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use http::StatusCode;
use http::request::Parts;
use tokio::sync::Notify;

use crate::batch::MAX_BODY_BYTES;
use crate::keys::{ApiKeys, Caller};
use crate::limits::{Endpoint, Limits};
use crate::metrics::Metrics;
use crate::storage::Storage;
use shape::Malformed;

/// What handlers work with. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) storage: Storage,
    pub(crate) store: AnyStore,
    pub(crate) keys: ApiKeys,
    pub(crate) limits: Arc<Limits>,
    pub(crate) terms: Terms,
    pub(crate) time: TimeSource,
    pub(crate) metrics: Metrics,
    pub(crate) wake: Arc<Notify>,
}

/// Where a batch has its idempotency key.
const INGEST_ID: JsonPointer = JsonPointer::from_static("/ingest_id");

/// Waits until no ingest runs any more.
pub(crate) type Idle = futures::future::BoxFuture<'static, ()>;

/// The service, and what to wait for when it has stopped taking requests.
pub(crate) fn router(app: App) -> (Router, Idle) {
    let limiter = Limiter::new(app.store.clone()).time(app.time.clone()).observer(app.metrics.clone());
    let budgets = |endpoint: Endpoint| {
        let limits = Arc::clone(&app.limits);
        BudgetLayer::new(limiter.clone(), move |request: &Parts| quotas(&limits, request, endpoint))
    };
    let terms = app.terms.clone();
    let once = IdempotencyLayer::new(app.store.clone(), move |request: &Parts| {
        let caller = request.extensions.get::<Caller>()?;
        let is_malformed = request.extensions.get::<Malformed>().is_some();
        let idempotent = || {
            Idempotent::by_body(&*caller.tenant, INGEST_ID)
                .if_missing(IfMissing::ContentKey)
                .terms(terms.clone())
        };
        (!is_malformed).then(idempotent)
    });
    let once = once
        .time(app.time.clone())
        .observer(app.metrics.clone())
        .max_request_body(MAX_BODY_BYTES)
        .budgets_in_store(budgets(Endpoint::Ingest));

    let guarded = |route: MethodRouter<App>, endpoint: Endpoint| {
        route
            .route_layer(from_fn(shape::refuse_malformed))
            .route_layer(budgets(endpoint))
            .route_layer(from_fn_with_state(endpoint, shape::check_parameters))
            .route_layer(from_fn_with_state(app.clone(), auth::authenticate))
    };
    let ingest = post(ingest::ingest)
        .route_layer(from_fn(shape::refuse_malformed))
        .route_layer(once.clone())
        .route_layer(from_fn(shape::check_batch))
        .route_layer(from_fn_with_state(app.clone(), auth::authenticate));
    let router = Router::new()
        .route("/memory/ingest", ingest)
        .route("/memory/query", guarded(get(query::query), Endpoint::Query))
        .route("/memory/skills", guarded(get(lists::skills), Endpoint::Skills))
        .route("/memory/projects", guarded(get(lists::projects), Endpoint::Projects))
        .route("/memory/jobs/{id}", guarded(get(jobs::job), Endpoint::Jobs))
        .route("/healthz", get(operations::healthz))
        .route("/readyz", get(operations::readyz))
        .route("/metrics", get(operations::metrics))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(app.clone(), context::with_context))
        .with_state(app);
    (router, Box::pin(async move { once.idle().await }))
}

/// What an authenticated request is charged.
fn quotas(limits: &Limits, request: &Parts, endpoint: Endpoint) -> Vec<Quota> {
    // Authentication comes first, so there is a caller.
    let Some(caller) = request.extensions.get::<Caller>() else { return Vec::new() };
    match request.extensions.get::<Malformed>() {
        Some(_) => limits.malformed(caller, endpoint),
        None => limits.quotas(caller, endpoint),
    }
}

async fn not_found() -> Response {
    respond(
        Problem::new(StatusCode::NOT_FOUND)
            .detail("there is nothing at this path")
            .with("error", "not_found"),
    )
}

/// The router adds `Allow`.
async fn method_not_allowed() -> Response {
    let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED)
        .detail("this path does not take this method; Allow lists those it takes")
        .with("error", "method_not_allowed");
    respond(problem)
}

/// A problem as a response of the service.
fn respond(problem: Problem) -> Response {
    problem.into_response()
}

/// The store cannot answer; the cause goes to the log, with the request's correlation id.
fn unavailable(cause: &dyn std::error::Error) -> Response {
    tracing::error!(error = %Causes(cause), "the store is unavailable");
    admit_tower::Rejection::Unavailable.problem().into_response()
}

/// As RFC 3339 has it, in UTC.
fn time(timestamp: admit::Timestamp) -> String {
    // Both count from 1970 and reach beyond the year 9998.
    jiff::Timestamp::from_microsecond(timestamp.unix_micros()).unwrap_or_default().to_string()
}
