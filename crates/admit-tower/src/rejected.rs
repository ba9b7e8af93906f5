//! A request that may not run, before that is told in any protocol.

use http::HeaderMap;
use http::request::Parts;

use crate::rejection::Renders;
use crate::{CorrelationId, Problem, Rejection};

/// Why a request may not run, for a front that tells it in a form of its own; [`Admission`](crate::Admission) has the
/// same in HTTP.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejected {
    /// Why.
    pub why: Rejection,
    /// The fields of its dialect that tell how the caller stands. `Retry-After` is one of the problem's.
    pub fields: HeaderMap,
    /// What the cause stands under in the log.
    pub(crate) id: Option<CorrelationId>,
}

impl Rejected {
    /// Without a word on how the caller stands, as nothing is known of that. The log has the cause under `id`.
    pub fn failed(why: Rejection, id: CorrelationId) -> Box<Self> {
        Box::new(Self { why, fields: HeaderMap::new(), id: Some(id) })
    }

    pub(crate) fn problem(self, request: &Parts, renders: &Renders) -> Problem {
        let mut problem = renders.problem(request, &self.why, self.id.as_ref());
        for (name, value) in self.fields {
            if let Some(name) = name {
                problem = problem.header(name, value);
            }
        }
        problem
    }
}
