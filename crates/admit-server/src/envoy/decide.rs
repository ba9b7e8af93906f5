//! Decides on a request of Envoy's protocol.

use admit_tower::{Admitted, PROBLEM_JSON, Rejected, Rejection};
use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http::request::Parts;

use super::asked::{Asked, Invalid};
use super::status::{Stood, statuses};
use super::{RateLimits, no_head};

/// A request without an answer. It is no refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Undecided {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The log has the cause.
    #[error("the budgets could not be evaluated; this says nothing of any limit")]
    Unavailable,
    /// The log has the cause.
    #[error("the request failed; the cause is in the server's log")]
    Internal,
}

impl RateLimits {
    pub(super) async fn decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Undecided> {
        let (decider, head) = (&self.decider, no_head());
        let mut asked = Asked::of(request, &decider.policy)?;
        decider.charge_shadows(&head, std::mem::take(&mut asked.shadows)).await;
        match self.admit(&head, &asked).await {
            Ok((stood, fields)) => Ok(RateLimitResponse {
                overall_code: Code::Ok.into(),
                statuses: statuses(&asked, &stood),
                response_headers_to_add: headers(&fields),
                ..RateLimitResponse::default()
            }),
            Err((rejected, stood)) => {
                match &rejected.why {
                    Rejection::Refused(_) => {}
                    Rejection::Unavailable => return Err(Undecided::Unavailable),
                    _ => return Err(Undecided::Internal),
                }
                let problem = decider.limiter.problem(&head, *rejected);
                let mut fields = problem.headers().clone();
                fields.insert(CONTENT_TYPE, PROBLEM_JSON);
                Ok(RateLimitResponse {
                    overall_code: Code::OverLimit.into(),
                    statuses: statuses(&asked, &stood),
                    response_headers_to_add: headers(&fields),
                    raw_body: problem.to_json().to_vec(),
                    ..RateLimitResponse::default()
                })
            }
        }
    }

    /// Takes what is to be taken, if what is only looked at fits too. How each line stood, and the fields that tell it, or why
    /// nothing was taken.
    async fn admit(
        &self,
        head: &Parts,
        asked: &Asked,
    ) -> Result<(Vec<Stood>, HeaderMap), (Box<Rejected>, Vec<Stood>)> {
        let limiter = &self.decider.limiter;
        let lines = asked.lines.len();
        let of_all = |rejected: Box<Rejected>| {
            let stood = refused(&rejected);
            (rejected, stood)
        };
        if asked.lines.iter().all(|line| !line.is_peek) {
            let admitted = limiter.decide(head, asked.quotas(true)).await.map_err(of_all)?;
            return Ok((stood(&admitted, lines), admitted.fields()));
        }
        let looked = limiter.peek(head, asked.quotas(true)).await.map_err(of_all)?;
        let before = stood(&looked, lines);
        match limiter.decide(head, asked.quotas(false)).await {
            Ok(taken) => Ok((asked.debited(before, stood(&taken, lines)), looked.fields())),
            // Another took between the look and the take.
            Err(rejected) => {
                let stood = asked.debited(before, refused(&rejected));
                Err((rejected, stood))
            }
        }
    }
}

/// How each of some charges stood that were refused together; nothing if they were not evaluated.
fn refused(rejected: &Rejected) -> Vec<Stood> {
    match &rejected.why {
        Rejection::Refused(refused) => {
            refused.refusal.standings.iter().map(|standing| Stood::Refused(*standing)).collect()
        }
        _ => Vec::new(),
    }
}

/// How each of some charges stood after it was granted.
fn stood(admitted: &Admitted, charges: usize) -> Vec<Stood> {
    match admitted.debits() {
        [] => vec![Stood::Unasked; charges], // The store could not answer, and the request may run all the same.
        debits => debits.iter().map(|(_, left)| left.map_or(Stood::Unasked, Stood::Left)).collect(),
    }
}

pub(super) fn headers(fields: &HeaderMap) -> Vec<HeaderValue> {
    let text = |value: &http::HeaderValue| value.to_str().unwrap_or_default().to_owned(); // All are ASCII.
    let header = |(name, value): (&http::HeaderName, _)| HeaderValue {
        key: name.to_string(),
        value: text(value),
        ..HeaderValue::default()
    };
    fields.iter().map(header).collect()
}
