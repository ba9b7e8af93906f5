//! Gives back what was charged for bytes of bodies that never come.

use std::sync::Arc;

use admit_tower::Admitted;
use axum::body::Body;
use axum::extract::Request;

use super::Front;
use super::plan::Planned;
use crate::body_bytes::Announced;
use crate::engine::Debited;

impl Front {
    /// Has what shadows debit for bytes that do not come given back, whether or not the request may run.
    pub(super) fn shadowed_by_the_byte(&self, request: Request) -> Request {
        let planned = request.extensions().get::<Planned>().filter(|planned| planned.is_announced);
        match planned.map(|planned| planned.shadows.clone()) {
            Some(shadows) => request.map(|body| self.given_back(body, shadows)),
            None => request,
        }
    }

    /// Has what was paid for bytes that do not come given back.
    pub(super) fn paid_by_the_byte(&self, request: Request) -> Request {
        let is_announced = request.extensions().get::<Planned>().is_some_and(|planned| planned.is_announced);
        let (parts, body) = request.into_parts();
        let body = match parts.extensions.get::<Admitted>().filter(|_| is_announced) {
            Some(admitted) => self.given_back(body, Debited::Known(vec![admitted.clone()])),
            None => body,
        };
        Request::from_parts(parts, body)
    }

    fn given_back(&self, body: Body, debited: Debited) -> Body {
        Announced::watch(body, debited, Arc::clone(&self.decider.policy), &self.decider.limiter)
    }
}
