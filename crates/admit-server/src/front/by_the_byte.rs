//! Gives back what was charged for bytes of bodies that never come.

use admit_tower::{Admitted, Quota};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::Front;
use super::plan::Planned;
use crate::body_bytes::Announced;
use crate::policy::{BudgetRule, CostSource};

/// Has what shadows debited for bytes that do not come given back, whether or not the request may run.
pub(super) async fn shadowed_by_the_byte(State(front): State<Front>, mut request: Request, next: Next) -> Response {
    let planned = request.extensions().get::<Planned>().filter(|planned| planned.is_announced);
    for shadow in planned.map(|planned| planned.shadows.clone()).unwrap_or_default() {
        request = request.map(|body| front.given_back(body, &shadow));
    }
    next.run(request).await
}

impl Front {
    /// Has what was paid for bytes that do not come given back.
    pub(super) fn paid_by_the_byte(&self, request: Request) -> Request {
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
}
