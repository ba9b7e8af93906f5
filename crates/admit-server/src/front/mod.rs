//! The way of a request through the server: it is planned, held to its budgets, run once for its idempotency key, and then
//! forwarded, or the front that asks about it is answered.

mod answers;
mod by_the_byte;
mod plan;

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;

use admit_listen::{Answering, Answers};
use admit_store::AnyStore;
use admit_tower::{BudgetLayer, BudgetPolicy, IdempotencyLayer, Problem};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::any;
use futures::future::{Either, Ready, ready};
use http::StatusCode;
use http::request::Parts;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::api::{self, Calls};
use crate::authorize::{self, AUTHORIZE};
use crate::bounds::Bounds;
use crate::engine::{Decider, Store};
use crate::envoy::{self, RateLimits};
use crate::gateway::{Gateway, of_a_record, unambiguous};
use crate::measured::Measured;
use crate::metrics::Metrics;
use crate::policy::{Keys, Policy};
use answers::counted;
use plan::{Planned, Then, planned};

/// The longest body that is read for a key or a cost, in bytes.
const MAX_BODY_BYTES: usize = 1 << 20;

/// What decides about requests. Clones share it.
#[derive(Clone, Debug)]
pub struct Front {
    decider: Arc<Decider>,
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
        let decider = Arc::new(Decider::new(policy, store, metrics.clone()));
        let bounds = Bounds { read_ahead: decider.read_ahead.clone(), ..Bounds::default() };
        Self { decider, keys, metrics, bounds }
    }

    /// Shares bounds with other fronts, in place of bounds of its own.
    #[must_use]
    pub fn within(mut self, bounds: Bounds) -> Self {
        Arc::make_mut(&mut self.decider).read_ahead = bounds.read_ahead.clone();
        self.bounds = bounds;
        self
    }

    /// The decision service, for other proxies and for services in any language.
    pub fn decide(self) -> Router {
        answers::router(self.decides())
    }

    /// The gateway, held to the policy's budgets. It has all paths but those behind the policy's prefix for decisions.
    pub fn in_front_of(self, gateway: Gateway) -> Router {
        answers::router(self.forwards(gateway))
    }

    /// [`Front::decide`], without a router around it.
    pub(crate) fn decides(self) -> Answers {
        let calls = self.calls();
        let service = match self.prefix() {
            Some(prefix) => Router::new().nest(&prefix, self.decisions()),
            None => self.decisions(),
        };
        let service =
            service.merge(envoy::grpc(self.decider.clone(), self.on_requests())).fallback(async || {
                let detail = "this is a decision service: ask /authorize, or see /openapi.json";
                let problem = Problem::new(StatusCode::NOT_FOUND).detail(detail).with("error", "not_found");
                problem.into_response::<Body>()
            });
        counted(self.metrics, move |request| calls.answer(&service, request))
    }

    fn calls(&self) -> AllCalls {
        let prefix = self.prefix().unwrap_or_default();
        let api = Calls::new(self.decider.clone(), self.metrics.clone(), &prefix);
        AllCalls { api, envoy: RateLimits::new(self.decider.clone()) }
    }

    fn prefix(&self) -> Option<String> {
        self.decider.policy.server.decisions.prefix.as_ref().map(|prefix| prefix.as_str().to_owned())
    }

    /// All of it but the calls, at the root.
    fn decisions(&self) -> Router {
        let authorize = self.on_requests().layer(from_fn(authorize::original));
        api::router(&self.decider.policy)
            .merge(envoy::json(self.decider.clone()))
            .nest_service(AUTHORIZE, authorize) // A service, whose fallback no router around it takes over.
    }

    /// Answers whether the request that is asked about, which stands in the place of the one that asks, may run.
    fn on_requests(&self) -> Router {
        Router::new()
            .fallback_service(self.budgets().layer(any(authorize::allow)))
            .layer(from_fn_with_state(Arc::new(self.clone()), planned))
    }

    fn budgets(&self) -> BudgetLayer<Store, impl BudgetPolicy + use<>> {
        BudgetLayer::new(self.decider.limiter.clone(), |request: &Parts| {
            request.extensions.get::<Planned>().map(|planned| planned.quotas.clone()).unwrap_or_default()
        })
    }

    /// [`Front::in_front_of`], without a router around it.
    pub(crate) fn forwards(self, gateway: Gateway) -> Answers {
        let once = IdempotencyLayer::new(self.decider.store.clone(), |request: &Parts| {
            request.extensions.get::<Planned>()?.idempotent.clone()
        });
        let once = once.max_request_body(MAX_BODY_BYTES).budgets_in_store(self.budgets());
        let once = once.runs(self.bounds.runs.clone()).read_ahead(self.bounds.read_ahead.clone());
        let once = once.render(of_a_record).observer(self.metrics.clone());
        let (once, each) = match gateway.may_speak_grpc() {
            true => (once.before_grpc(), self.budgets().before_grpc()),
            false => (once, self.budgets()),
        };
        let front = Arc::new(self);
        let keyed = once.layer(gateway.clone().map_request({
            let front = Arc::clone(&front);
            move |request: Request<admit_tower::Body<Body>>| front.paid_by_the_byte(request.map(Body::new))
        }));
        let unkeyed = each.layer(gateway.map_request({
            let front = Arc::clone(&front);
            move |request| front.paid_by_the_byte(request)
        }));
        let forward = {
            let front = Arc::clone(&front);
            move |request| Arc::clone(&front).forward(keyed.clone(), unkeyed.clone(), request)
        };
        let metrics = front.metrics.clone();
        let Some(prefix) = front.prefix() else { return counted(metrics, unambiguously(forward)) };
        let forward = service_fn(move |request| {
            let forwarded = forward(request);
            async move { Ok::<_, Infallible>(forwarded.await) }
        });
        let both = Router::new()
            .nest(&prefix, front.decisions())
            .merge(envoy::grpc(front.decider.clone(), front.on_requests()))
            .fallback_service(forward);
        let calls = front.calls();
        counted(metrics, unambiguously(move |request| calls.answer(&both, request)))
    }

    /// The way of a request through the gateway, of which `keyed` is what is held to budgets and keys, and `unkeyed` what is
    /// held to budgets alone.
    async fn forward<K, U>(self: Arc<Self>, keyed: K, unkeyed: U, request: Request) -> Response
    where
        K: Service<Request, Response = Forwarded, Error = Infallible>,
        U: Service<Request, Response = Forwarded, Error = Infallible>,
    {
        let request = match self.plan(Then::Forward, request).await {
            ControlFlow::Continue(request) => self.shadowed_by_the_byte(request),
            ControlFlow::Break(answer) => return answer,
        };
        let is_keyed =
            request.extensions().get::<Planned>().is_some_and(|planned| planned.idempotent.is_some());
        let Ok(response) = match is_keyed {
            true => keyed.oneshot(request).await,
            false => unkeyed.oneshot(request).await,
        };
        response.map(Body::new)
    }
}

type Forwarded = http::Response<admit_tower::Body<Body>>;

/// The calls that services and proxies make most, which are found without a router.
#[derive(Clone)]
struct AllCalls {
    api: Calls,
    envoy: RateLimits,
}

impl AllCalls {
    /// Answers them, and has the router answer all else.
    fn answer(&self, router: &Router, request: Request) -> Answering {
        let answered = match self.api.answer(request) {
            ControlFlow::Continue(request) => self.envoy.answer(router, request),
            answered => answered,
        };
        match answered {
            ControlFlow::Break(answering) => answering,
            ControlFlow::Continue(request) => {
                let answering = router.clone().oneshot(request);
                Box::pin(async move {
                    let Ok(response) = answering.await;
                    response
                })
            }
        }
    }
}

/// Refuses what two servers could take for two requests.
fn unambiguously<A: Future<Output = Response> + Send>(
    forward: impl Fn(Request) -> A + Clone + Send + Sync + 'static,
) -> impl Fn(Request) -> Either<Ready<Response>, A> + Clone + Send + Sync + 'static {
    move |request| match unambiguous(&request) {
        Some(refusal) => Either::Left(ready(refusal)),
        None => Either::Right(forward(request)),
    }
}
