//! The way of a request through the server: its route, its facts, its budgets, its idempotency key, and then the service.

use std::net::IpAddr;
use std::sync::Arc;

use admit::{Clock, MonotonicClock};
use admit_listen::Peer;
use admit_store::AnyStore;
use admit_tower::{
    Admitted, BudgetLayer, BudgetPolicy, CorrelationId, IdempotencyLayer, Idempotent, Problem, Quota,
    Rejection, strict_json,
};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::any;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Body as _;
use tower::{Layer, ServiceExt};

use crate::authorize::{self, AUTHORIZE};
use crate::body_bytes::{self, Announced};
use crate::engine::{Charges, Decider, Facts, Malformed, Store, tenant};
use crate::gateway::{Gateway, of_a_record, unambiguous};
use crate::measured::Measured;
use crate::metrics::Metrics;
use crate::path::Reading;
use crate::policy::{BudgetRule, CostSource, Identity, Keys, Policy, Route};
use crate::{api, bearer, body, envoy};

/// The longest body that is read for a key or a cost, in bytes.
const MAX_BODY_BYTES: usize = 1 << 20;

/// What decides about requests. Clones share it.
#[derive(Clone, Debug)]
pub struct Front {
    decider: Decider,
    keys: Arc<Keys>,
    metrics: Metrics,
}

/// What was worked out for a request, in its extensions.
#[derive(Clone, Debug, Default)]
struct Planned {
    quotas: Vec<Quota>,
    /// What shadows have debited.
    shadows: Vec<Admitted>,
    idempotent: Option<Idempotent>,
    /// The body comes still, and was charged as it was announced.
    is_announced: bool,
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
        Self { decider: Decider::new(policy, store, metrics.clone()), keys, metrics }
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
            .layer(from_fn_with_state(self.clone(), plan))
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
        let once = once.max_request_body(MAX_BODY_BYTES).budgets(self.budgets());
        let once = once.render(of_a_record).observer(self.metrics.clone());
        let front = self.clone();
        let gateway = gateway.map_request(move |request: Request<admit_tower::Body<Body>>| {
            front.paid_by_the_byte(request.map(Body::new))
        });
        let gateway = Router::new()
            .fallback_service(once.layer(gateway))
            .layer(from_fn_with_state(self.clone(), shadowed_by_the_byte))
            .layer(from_fn_with_state(self.clone(), plan));
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

/// Works out what the request is charged, and how it is kept from running twice.
async fn plan(State(front): State<Front>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let reading = match Reading::of(parts.uri.path()) {
        Ok(reading) => reading,
        Err(error) => return ambiguous(&error),
    };
    let (route, names) = match front.decider.policy.routes.find_read(&parts.method, &reading) {
        Ok(Some(found)) => found,
        Ok(None) => return next.run(Request::from_parts(parts, body)).await, // The policy says nothing of it.
        Err(error) => return ambiguous(&error),
    };
    let identity = front.identity(&parts.headers);
    if identity.is_none() && front.asks_for_identity(route) {
        return unknown();
    }
    let announced = body.size_hint().exact();
    let asks_for_body = front.asks_for_body(route);
    let is_read = asks_for_body || announced.is_none() && front.asks_for_length(route);
    let (json, is_unreadable, body) = match is_read {
        true => match read(body).await {
            Ok((bytes, body)) if asks_for_body => match strict_json::parse(&bytes) {
                Ok(json) => (Some(json), false, body),
                Err(_) => (None, !bytes.is_empty(), body),
            },
            Ok((_, body)) => (None, false, body),
            Err(Rejection::BodyTooLarge { .. }) if !asks_for_body => return refuse(&Malformed::Length),
            Err(rejection) => return rejection.problem().into_response(),
        },
        false => (None, false, body),
    };
    let facts = Facts {
        method: &parts.method,
        path: &reading.path,
        names,
        query: parts.uri.query(),
        headers: &parts.headers,
        client: front.client(&parts),
        identity,
        body_bytes: announced.or_else(|| body.size_hint().exact()),
        json: json.as_ref(),
        is_unreadable,
        entries: &[],
    };
    let (planned, shadows) = match front.planned(route, &facts) {
        Ok((planned, shadows)) => (Planned { is_announced: !is_read, ..planned }, shadows),
        Err(malformed) => return refuse(&malformed),
    };
    let shadows = front.decider.charge_shadows(&parts, shadows).await;
    parts.extensions.insert(Planned { shadows, ..planned });
    next.run(Request::from_parts(parts, body)).await
}

/// Has what shadows debited for bytes that do not come given back, whether or not the request may run.
async fn shadowed_by_the_byte(State(front): State<Front>, mut request: Request, next: Next) -> Response {
    let planned = request.extensions().get::<Planned>().filter(|planned| planned.is_announced);
    for shadow in planned.map(|planned| planned.shadows.clone()).unwrap_or_default() {
        request = request.map(|body| front.given_back(body, &shadow));
    }
    next.run(request).await
}

/// Unknown keys are refused before any bucket is touched.
fn unknown() -> Response {
    let problem =
        Problem::new(StatusCode::UNAUTHORIZED).detail("send a known API key").with("error", "unauthorized");
    problem.header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")).into_response()
}

/// What would be charged could be another thing than what runs.
fn ambiguous(error: &dyn std::error::Error) -> Response {
    let problem = Problem::new(StatusCode::BAD_REQUEST).detail(error.to_string());
    problem.with("error", "bad_request").into_response()
}

fn refuse(malformed: &Malformed) -> Response {
    let status = match malformed {
        Malformed::Cost(_) => StatusCode::BAD_REQUEST,
        Malformed::Length => StatusCode::LENGTH_REQUIRED,
    };
    Problem::new(status).detail(malformed.to_string()).with("error", "cost_unknown").into_response()
}

impl Front {
    fn client(&self, request: &Parts) -> IpAddr {
        let peer = request.extensions.get::<Peer>().map(|Peer(address)| address.ip());
        // Every listener of this program tells the peer.
        self.decider
            .policy
            .server
            .trusted
            .client(peer.unwrap_or(IpAddr::from([0, 0, 0, 0])), &request.headers)
    }

    /// The caller, by the first of the headers that is there. A header that stands twice is no key.
    fn identity(&self, headers: &HeaderMap) -> Option<&Identity> {
        let mut sent =
            self.decider.policy.server.key_headers.iter().filter(|name| headers.contains_key(*name));
        let name = sent.next()?;
        let mut values = headers.get_all(name).iter();
        let (value, None) = (values.next()?, values.next()) else { return None };
        let key = match *name == AUTHORIZATION {
            true => bearer::key(value)?,
            false => value.as_bytes(),
        };
        self.keys.identify(key)
    }

    fn asks_for_identity(&self, route: &Route) -> bool {
        route.budgets.iter().any(|&index| self.decider.policy.budgets[index].by.asks_for_identity())
            || route.idempotency.as_ref().is_some_and(|rule| rule.by.asks_for_identity())
    }

    fn asks_for_body(&self, route: &Route) -> bool {
        let by_budget = route.budgets.iter().map(|&index| &self.decider.policy.budgets[index]);
        by_budget.clone().any(BudgetRule::asks_for_body)
            || route.idempotency.as_ref().is_some_and(|rule| rule.by.asks_for_body())
    }

    fn asks_for_length(&self, route: &Route) -> bool {
        route.budgets.iter().any(|&index| self.decider.policy.budgets[index].cost == CostSource::BodyBytes)
    }

    /// Has what was paid for bytes that do not come given back.
    fn paid_by_the_byte(&self, request: Request) -> Request {
        let is_announced = request.extensions().get::<Planned>().is_some_and(|planned| planned.is_announced);
        let (parts, body) = request.into_parts();
        let body = match parts.extensions.get::<Admitted>().filter(|_| is_announced) {
            Some(admitted) => self.given_back(body, admitted),
            None => body,
        };
        Request::from_parts(parts, body)
    }

    fn given_back(&self, body: Body, admitted: &Admitted) -> Body {
        let by_byte = |budget: &&BudgetRule| budget.cost == CostSource::BodyBytes;
        let budgets = || self.decider.policy.budgets.iter().filter(by_byte);
        let charged = |quota: &Quota| budgets().any(|budget| budget.scope == quota.charge.scope);
        Announced::watch(body, admitted, charged, &self.decider.limiter)
    }

    /// What the request is charged and how it is kept from running twice, and what shadows are charged.
    fn planned(&self, route: &Route, facts: &Facts<'_>) -> Result<(Planned, Vec<Quota>), Malformed> {
        let budgets = route.budgets.iter().map(|&index| &self.decider.policy.budgets[index]);
        let Charges { quotas, shadows } = Charges::of(budgets, facts)?;
        let idempotent = route.idempotency.as_ref().map(|rule| Idempotent {
            tenant: tenant(&rule.by, facts),
            route: Some(route.pattern.to_string()),
            key: rule.key.clone(),
            if_missing: rule.if_missing,
            fingerprint: rule.fingerprint,
            terms: rule.terms.clone(),
            wait: rule.wait,
        });
        Ok((Planned { quotas, idempotent, ..Planned::default() }, shadows))
    }
}

/// The bytes of the body, and the body again.
async fn read(body: Body) -> Result<(Bytes, Body), Rejection> {
    Ok(body_bytes::again(body::collected(body, MAX_BODY_BYTES).await?))
}
