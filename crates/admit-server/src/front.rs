//! The way of a request through the server: its route, its facts, its budgets, its idempotency key, and then the service.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use admit::{Clock, MonotonicClock};
use admit_listen::Peer;
use admit_store::AnyStore;
use admit_tower::{
    Admission, Admitted, BudgetLayer, BudgetPolicy, IdempotencyLayer, Idempotent, Limiter, Problem, Quota,
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
use http_body_util::{BodyExt, Limited};
use tokio::time::timeout;
use tower::{Layer, ServiceExt};

use crate::authorize::{self, AUTHORIZE};
use crate::body_bytes::{self, Announced};
use crate::engine::{Charging, Facts, Malformed, tenant};
use crate::gateway::{Gateway, unambiguous};
use crate::metrics::{Metrics, ShadowMetrics};
use crate::path;
use crate::policy::{BudgetRule, CostSource, Identity, Keys, Mode, Policy, Route};

/// The longest body that is read for a key or a cost, in bytes.
const MAX_BODY_BYTES: usize = 1 << 20;
/// How long such a body may take to arrive.
const BODY_TIME_LIMIT: Duration = Duration::from_secs(30);

/// What decides about requests. Clones share it.
#[derive(Clone, Debug)]
pub struct Front {
    policy: Arc<Policy>,
    keys: Arc<Keys>,
    limiter: Limiter<AnyStore>,
    /// For budgets in shadow mode, each of which is charged apart.
    shadows: Limiter<AnyStore>,
    store: AnyStore,
    metrics: Metrics,
}

/// What was worked out for a request, in its extensions.
#[derive(Clone, Debug, Default)]
struct Planned {
    quotas: Vec<Quota>,
    idempotent: Option<Idempotent>,
    /// The body comes still, and was charged as it was announced.
    is_announced: bool,
}

impl Front {
    /// Decides by this policy, on this store.
    pub fn new(policy: Arc<Policy>, keys: Arc<Keys>, store: AnyStore, metrics: Metrics) -> Self {
        let limiter = Limiter::new(store.clone()).dialect(policy.server.dialect).observer(metrics.clone());
        let shadows = Limiter::new(store.clone()).observer(ShadowMetrics(metrics.clone()));
        Self { policy, keys, limiter, shadows, store, metrics }
    }

    /// The decision service for other proxies: [`AUTHORIZE`] answers whether a request may run.
    pub fn decide(self) -> Router {
        let authorize = Router::new()
            .fallback_service(self.budgets().layer(any(authorize::allow)))
            .layer(from_fn_with_state(self.clone(), plan))
            .layer(from_fn(authorize::original));
        Router::new()
            .nest(AUTHORIZE, authorize)
            .fallback(async || {
                let detail = "this is a decision service: ask /authorize";
                let problem = Problem::new(StatusCode::NOT_FOUND).detail(detail).with("error", "not_found");
                problem.into_response::<Body>()
            })
            .layer(from_fn_with_state(self, count))
    }

    fn budgets(&self) -> BudgetLayer<AnyStore, impl BudgetPolicy + use<>> {
        BudgetLayer::new(self.limiter.clone(), |request: &Parts| {
            request.extensions.get::<Planned>().map(|planned| planned.quotas.clone()).unwrap_or_default()
        })
    }

    /// The gateway, held to the policy's budgets.
    pub fn in_front_of(self, gateway: Gateway) -> Router {
        let once = IdempotencyLayer::new(self.store.clone(), |request: &Parts| {
            request.extensions.get::<Planned>()?.idempotent.clone()
        });
        let once =
            once.max_request_body(MAX_BODY_BYTES).budgets(self.budgets()).observer(self.metrics.clone());
        let front = self.clone();
        let gateway = gateway.map_request(move |request: Request<admit_tower::Body<Body>>| {
            front.paid_by_the_byte(request.map(Body::new))
        });
        Router::new()
            .fallback_service(once.layer(gateway))
            .layer(from_fn_with_state(self.clone(), plan))
            .layer(from_fn(unambiguous))
            .layer(from_fn_with_state(self, count))
    }
}

/// Counts the answer.
async fn count(State(front): State<Front>, request: Request, next: Next) -> Response {
    let clock = MonotonicClock::start();
    let started = clock.now();
    let response = next.run(request).await;
    front.metrics.answered(response.status().as_u16(), clock.now().since(started));
    response
}

/// Works out what the request is charged, and how it is kept from running twice.
async fn plan(State(front): State<Front>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let path = path::normalised(parts.uri.path());
    let Some((route, names)) = front.policy.routes.find(&parts.method, &path) else {
        return next.run(Request::from_parts(parts, body)).await; // The policy says nothing of it.
    };
    let identity = front.identity(&parts.headers);
    if identity.is_none() && front.asks_for_identity(route) {
        return unknown();
    }
    let announced = body.size_hint().exact();
    let asks_for_body = front.asks_for_body(route);
    let is_read = asks_for_body || announced.is_none() && front.asks_for_length(route);
    let (json, body) = match is_read {
        true => match read(body).await {
            Ok((bytes, body)) => (strict_json::parse(&bytes).ok().filter(|_| asks_for_body), body),
            Err(Rejection::BodyTooLarge { .. }) if !asks_for_body => return refuse(&Malformed::Length),
            Err(rejection) => return rejection.problem().into_response(),
        },
        false => (None, body),
    };
    let facts = Facts {
        method: &parts.method,
        path: &path,
        names,
        query: parts.uri.query(),
        headers: &parts.headers,
        client: front.client(&parts),
        identity,
        body_bytes: announced.or_else(|| body.size_hint().exact()),
        json: json.as_ref(),
    };
    let (planned, shadows) = match front.planned(route, &facts) {
        Ok((planned, shadows)) => (Planned { is_announced: !is_read, ..planned }, shadows),
        Err(malformed) => return refuse(&malformed),
    };
    for shadow in shadows {
        // It is charged apart, and its refusals are told to observers alone.
        let (Admission::Admitted(_) | Admission::Rejected(_)) =
            front.shadows.admit(&parts, vec![shadow]).await;
    }
    parts.extensions.insert(planned);
    next.run(Request::from_parts(parts, body)).await
}

/// Unknown keys are refused before any bucket is touched.
fn unknown() -> Response {
    let problem =
        Problem::new(StatusCode::UNAUTHORIZED).detail("send a known API key").with("error", "unauthorized");
    problem.header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")).into_response()
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
        self.policy.server.trusted.client(peer.unwrap_or(IpAddr::from([0, 0, 0, 0])), &request.headers)
    }

    /// The caller, by the first of the headers that is there. A header that stands twice is no key.
    fn identity(&self, headers: &HeaderMap) -> Option<&Identity> {
        let mut sent = self.policy.server.key_headers.iter().filter(|name| headers.contains_key(*name));
        let name = sent.next()?;
        let mut values = headers.get_all(name).iter();
        let (value, None) = (values.next()?, values.next()) else { return None };
        let key = match *name == AUTHORIZATION {
            true => {
                let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
                Some(key.trim_ascii()).filter(|_| scheme.eq_ignore_ascii_case(b"Bearer "))?
            }
            false => value.as_bytes(),
        };
        self.keys.identify(key)
    }

    fn asks_for_identity(&self, route: &Route) -> bool {
        route.budgets.iter().any(|&index| self.policy.budgets[index].by.asks_for_identity())
            || route.idempotency.as_ref().is_some_and(|rule| rule.by.asks_for_identity())
    }

    fn asks_for_body(&self, route: &Route) -> bool {
        let by_budget = route.budgets.iter().map(|&index| &self.policy.budgets[index]);
        by_budget.clone().any(BudgetRule::asks_for_body)
            || route.idempotency.as_ref().is_some_and(|rule| rule.by.asks_for_body())
    }

    fn asks_for_length(&self, route: &Route) -> bool {
        route.budgets.iter().any(|&index| self.policy.budgets[index].cost == CostSource::BodyBytes)
    }

    /// Has what was paid for bytes that do not come given back.
    fn paid_by_the_byte(&self, request: Request) -> Request {
        let is_announced = request.extensions().get::<Planned>().is_some_and(|planned| planned.is_announced);
        let (parts, body) = request.into_parts();
        let body = match parts.extensions.get::<Admitted>().filter(|_| is_announced) {
            Some(admitted) => {
                let by_byte = |budget: &&BudgetRule| budget.cost == CostSource::BodyBytes;
                let budgets = || self.policy.budgets.iter().filter(by_byte);
                let charged = |quota: &Quota| budgets().any(|budget| budget.scope == quota.charge.scope);
                Announced::watch(body, admitted, charged, &self.limiter)
            }
            None => body,
        };
        Request::from_parts(parts, body)
    }

    /// What the request is charged and how it is kept from running twice, and what shadows are charged.
    fn planned(&self, route: &Route, facts: &Facts<'_>) -> Result<(Planned, Vec<Quota>), Malformed> {
        let (mut quotas, mut shadows) = (Vec::new(), Vec::new());
        for budget in route.budgets.iter().map(|&index| &self.policy.budgets[index]) {
            match budget.mode {
                Mode::Enforce => quotas.push(budget.quota(facts)?),
                Mode::Shadow => shadows.extend(budget.quota(facts)), // Which refuses nobody, whatever it lacks.
            }
        }
        let idempotent = route.idempotency.as_ref().map(|rule| Idempotent {
            tenant: tenant(&rule.by, facts),
            route: Some(route.pattern.to_string()),
            key: rule.key.clone(),
            if_missing: rule.if_missing,
            fingerprint: rule.fingerprint,
            terms: rule.terms.clone(),
        });
        Ok((Planned { quotas, idempotent, is_announced: false }, shadows))
    }
}

/// The bytes of the body, and the body again.
async fn read(body: Body) -> Result<(Bytes, Body), Rejection> {
    let too_large = || Rejection::BodyTooLarge { max: MAX_BODY_BYTES };
    if body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(too_large());
    }
    match timeout(BODY_TIME_LIMIT, Limited::new(body, MAX_BODY_BYTES).collect()).await {
        Ok(Ok(whole)) => Ok(body_bytes::again(whole)),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Rejection::BodyUnreadable),
        Err(_) => Err(Rejection::BodyTooSlow),
    }
}
