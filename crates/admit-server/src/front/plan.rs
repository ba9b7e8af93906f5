//! What a request is charged and how it is kept from running twice, worked out before anything is done about it.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;

use admit_listen::Peer;
use admit_tower::{Idempotent, Problem, Quota, Rejection, strict_json};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use http_body::Body as _;

use super::{Front, MAX_BODY_BYTES};
use crate::engine::{Charges, Debited, Facts, Malformed, tenant};
use crate::path::Reading;
use crate::policy::{BudgetRule, CostSource, Identity, Route};
use crate::{bearer, body};

/// What was worked out for a request, in its extensions.
#[derive(Clone, Debug, Default)]
pub(super) struct Planned {
    pub(super) quotas: Vec<Quota>,
    /// What shadows debit.
    pub(super) shadows: Debited,
    pub(super) idempotent: Option<Idempotent>,
    /// The body comes still, and was charged as it was announced.
    pub(super) is_announced: bool,
}

/// What becomes of a request once it is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// It is forwarded.
    Forward,
    /// Whoever asked about it is told. The answer to the request itself is not seen, so that its key is not looked at.
    Tell,
}

/// Plans a request that somebody asks about.
pub(super) async fn planned(State(front): State<Arc<Front>>, request: Request, next: Next) -> Response {
    match front.plan(Then::Tell, request).await {
        ControlFlow::Continue(request) => next.run(request).await,
        ControlFlow::Break(answer) => answer,
    }
}

impl Front {
    /// Works out what the request is charged, and how it is kept from running twice, or why it is answered at once.
    pub(super) async fn plan(&self, then: Then, request: Request) -> ControlFlow<Response, Request> {
        use ControlFlow::{Break, Continue};
        let (mut parts, body) = request.into_parts();
        let reading = match Reading::of(parts.uri.path()) {
            Ok(reading) => reading,
            Err(error) => return Break(ambiguous(&error)),
        };
        let (route, names) = match self.decider.policy.routes.find_read(&parts.method, &reading) {
            Ok(Some(found)) => found,
            Ok(None) => return Continue(Request::from_parts(parts, body)), // The policy says nothing of it.
            Err(error) => return Break(ambiguous(&error)),
        };
        // Unknown keys are refused before any bucket is touched.
        let identity = self.identity(&parts.headers);
        if identity.is_none() && self.asks_for_identity(route) {
            return Break(bearer::unknown("send a known API key").into_response());
        }
        let announced = body.size_hint().exact();
        let asks_for_body = self.asks_for_body(route);
        let is_read = asks_for_body || announced.is_none() && self.asks_for_length(route);
        let (json, is_unreadable, body) = match is_read {
            true => match body::whole(&self.decider.read_ahead, body, MAX_BODY_BYTES).await {
                Ok(read) => {
                    let json = asks_for_body.then(|| strict_json::parse(&read.bytes).ok());
                    let is_unreadable = json == Some(None) && !read.bytes.is_empty();
                    (json.flatten(), is_unreadable, Body::new(read.into_body::<Body>()))
                }
                Err(Rejection::BodyTooLarge { .. }) if !asks_for_body => {
                    return Break(refuse(&Malformed::Length));
                }
                Err(rejection) => return Break(rejection.problem().into_response()),
            },
            false => (None, false, body),
        };
        let facts = Facts {
            method: &parts.method,
            path: &reading.path,
            names,
            query: parts.uri.query(),
            headers: &parts.headers,
            client: self.client(&parts),
            identity,
            body_bytes: announced.or_else(|| body.size_hint().exact()),
            json: json.as_ref(),
            is_unreadable,
            entries: &[],
        };
        let (planned, shadows) = match self.planned(route, &facts, then) {
            Ok((planned, shadows)) => (Planned { is_announced: !is_read, ..planned }, shadows),
            Err(malformed) => return Break(refuse(&malformed)),
        };
        let shadows = self.decider.charge_shadows(&parts, shadows).await;
        parts.extensions.insert(Planned { shadows, ..planned });
        Continue(Request::from_parts(parts, body))
    }
}

/// What would be charged could be another thing than what runs.
fn ambiguous(error: &dyn std::error::Error) -> Response {
    let problem = Problem::new(StatusCode::BAD_REQUEST).detail(error.to_string());
    problem.with("error", "bad_request").into_response()
}

fn refuse(malformed: &Malformed) -> Response {
    let (status, error) = match malformed {
        Malformed::Cost(_) => (StatusCode::BAD_REQUEST, "cost_unknown"),
        Malformed::Nobody(_) => (StatusCode::BAD_REQUEST, "caller_unknown"),
        Malformed::Length => (StatusCode::LENGTH_REQUIRED, "cost_unknown"),
    };
    Problem::new(status).detail(malformed.to_string()).with("error", error).into_response()
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

    /// What the request is charged and how it is kept from running twice, and what shadows are charged.
    fn planned(
        &self,
        route: &Route,
        facts: &Facts<'_>,
        then: Then,
    ) -> Result<(Planned, Vec<Quota>), Malformed> {
        let budgets = route.budgets.iter().map(|&index| &self.decider.policy.budgets[index]);
        let Charges { quotas, shadows } = Charges::of(budgets, facts)?;
        let idempotent = match route.idempotency.as_ref().filter(|_| then == Then::Forward) {
            Some(rule) => Some(Idempotent {
                tenant: tenant(&rule.by, facts)?,
                route: Some(facts.path.to_owned()), // With what stands for its names: job 2 is not job 1.
                key: rule.key.clone(),
                if_missing: rule.if_missing,
                fingerprint: rule.fingerprint,
                terms: rule.terms.clone(),
                wait: rule.wait,
            }),
            None => None,
        };
        Ok((Planned { quotas, idempotent, ..Planned::default() }, shadows))
    }
}
