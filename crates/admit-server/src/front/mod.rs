//! The way of a request through the server: it is planned, held to its budgets, run once for its idempotency key, and then
//! forwarded, or the front that asks about it is answered.

mod by_the_byte;
mod plan;

use std::sync::Arc;

use admit::{Clock, MonotonicClock};
use admit_store::AnyStore;
use admit_tower::{BudgetLayer, BudgetPolicy, CorrelationId, IdempotencyLayer, Problem};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::any;
use http::StatusCode;
use http::request::Parts;
use tower::{Layer, ServiceExt};

use crate::authorize::{self, AUTHORIZE};
use crate::bounds::Bounds;
use crate::engine::{Decider, Store};
use crate::gateway::{Gateway, of_a_record, unambiguous};
use crate::measured::Measured;
use crate::metrics::Metrics;
use crate::policy::{Keys, Policy};
use crate::{api, envoy};
use by_the_byte::shadowed_by_the_byte;
use plan::{Planned, Then, plan};

/// The longest body that is read for a key or a cost, in bytes.
const MAX_BODY_BYTES: usize = 1 << 20;

/// What decides about requests. Clones share it.
#[derive(Clone, Debug)]
pub struct Front {
    decider: Decider,
    keys: Arc<Keys>,
    metrics: Metrics,
    bounds: Bounds,
}

impl Front {
    /// Decides by this policy, on this store, of which nothing is held yet.
    pub fn new(policy: Arc<Policy>, keys: Arc<Keys>, store: AnyStore, metrics: Metrics) -> Self {
        let store = Measured::new(store, metrics.store.clone());
        let leased = metrics.leases.lease(store, policy.leases());
        Self::over(policy, keys, leased, metrics)
    }

    /// Decides by this policy, on this store and what is held of it.
    pub fn over(policy: Arc<Policy>, keys: Arc<Keys>, store: Store, metrics: Metrics) -> Self {
        let decider = Decider::new(policy, store, metrics.clone());
        let bounds = Bounds { read_ahead: decider.read_ahead.clone(), ..Bounds::default() };
        Self { decider, keys, metrics, bounds }
    }

    /// Shares bounds with other fronts, in place of bounds of its own.
    #[must_use]
    pub fn within(mut self, bounds: Bounds) -> Self {
        self.decider.read_ahead = bounds.read_ahead.clone();
        self.bounds = bounds;
        self
    }

    /// The decision service, for other proxies and for services in any language.
    pub fn decide(self) -> Router {
        let service = match self.prefix() {
            Some(prefix) => Router::new().nest(&prefix, self.decisions()),
            None => self.decisions(),
        };
        service
            .merge(envoy::grpc(self.decider.clone(), self.on_requests()))
            .fallback(async || {
                let detail = "this is a decision service: ask /authorize, or see /openapi.json";
                let problem = Problem::new(StatusCode::NOT_FOUND).detail(detail).with("error", "not_found");
                problem.into_response::<Body>()
            })
            .layer(from_fn_with_state(self, count))
    }

    fn prefix(&self) -> Option<String> {
        self.decider.policy.server.decisions.prefix.as_ref().map(|prefix| prefix.as_str().to_owned())
    }

    /// All of it, at the root.
    fn decisions(&self) -> Router {
        let authorize = self.on_requests().layer(from_fn(authorize::original));
        api::router(self.decider.clone(), self.metrics.clone())
            .merge(envoy::json(self.decider.clone()))
            .nest_service(AUTHORIZE, authorize) // A service, whose fallback no router around it takes over.
    }

    /// Answers whether the request that is asked about, which stands in the place of the one that asks, may run.
    fn on_requests(&self) -> Router {
        Router::new()
            .fallback_service(self.budgets().layer(any(authorize::allow)))
            .layer(from_fn_with_state((self.clone(), Then::Tell), plan))
    }

    fn budgets(&self) -> BudgetLayer<Store, impl BudgetPolicy + use<>> {
        BudgetLayer::new(self.decider.limiter.clone(), |request: &Parts| {
            request.extensions.get::<Planned>().map(|planned| planned.quotas.clone()).unwrap_or_default()
        })
    }

    /// The gateway, held to the policy's budgets. It has all paths but those behind the policy's prefix for decisions.
    pub fn in_front_of(self, gateway: Gateway) -> Router {
        let once = IdempotencyLayer::new(self.decider.store.clone(), |request: &Parts| {
            request.extensions.get::<Planned>()?.idempotent.clone()
        });
        let once = once.max_request_body(MAX_BODY_BYTES).budgets_in_store(self.budgets());
        let once = once.runs(self.bounds.runs.clone()).read_ahead(self.bounds.read_ahead.clone());
        let once = once.render(of_a_record).observer(self.metrics.clone());
        let once = if gateway.may_speak_grpc() { once.before_grpc() } else { once };
        let front = self.clone();
        let gateway = gateway.map_request(move |request: Request<admit_tower::Body<Body>>| {
            front.paid_by_the_byte(request.map(Body::new))
        });
        let gateway = Router::new()
            .fallback_service(once.layer(gateway))
            .layer(from_fn_with_state(self.clone(), shadowed_by_the_byte))
            .layer(from_fn_with_state((self.clone(), Then::Forward), plan));
        let front = match self.prefix() {
            Some(prefix) => Router::new()
                .nest(&prefix, self.decisions())
                .merge(envoy::grpc(self.decider.clone(), self.on_requests()))
                .fallback_service(gateway),
            None => gateway,
        };
        front.layer(from_fn(unambiguous)).layer(from_fn_with_state(self, count))
    }
}

/// Counts the answer. All that is logged of the request has one id.
async fn count(State(front): State<Front>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().get_or_insert_with(CorrelationId::random);
    let clock = MonotonicClock::start();
    let started = clock.now();
    let response = next.run(request).await;
    front.metrics.answered(response.status().as_u16(), clock.now().since(started));
    response
}
