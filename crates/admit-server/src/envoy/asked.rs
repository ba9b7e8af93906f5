//! What is asked: the descriptors of a request, within bounds, and what each is charged.

use admit::{Cost, MAX_CHARGES};
use admit_tower::Quota;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use http::HeaderMap;

use super::status::Stood;
use crate::engine::{Charges, Facts};
use crate::policy::Policy;

/// The most descriptors of a request.
pub(super) const MAX_DESCRIPTORS: usize = 64;
/// The most entries of a descriptor.
pub(super) const MAX_ENTRIES: usize = 32;
/// The longest domain or key, in characters. Values are what clients send: of one that is too long there would be no decision,
/// and Envoy lets such requests pass. The size of a message bounds them.
pub(super) const MAX_TEXT_CHARS: usize = 1_024;

/// A request that cannot be decided on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Invalid {
    #[error("the domain is empty")]
    NoDomain,
    #[error("there is no descriptor")]
    NoDescriptor,
    #[error("{0} descriptors are more than {MAX_DESCRIPTORS}")]
    Descriptors(usize),
    #[error("descriptors[{0}] has more than {MAX_ENTRIES} entries")]
    Entries(usize),
    #[error("a domain or key is longer than {MAX_TEXT_CHARS} characters")]
    Text,
    #[error("descriptors[{0}] asks for negative hits; give back what was taken at /v1/refund")]
    Negative(usize),
    #[error("the descriptors come to {0} charges, and a take has no more than {MAX_CHARGES}")]
    Charges(usize),
    #[error("descriptors[{0}] lacks what its budget charges by")]
    Malformed(usize),
}

/// What a request is charged.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// On budgets that hold, in the order of the descriptors.
    pub(super) lines: Vec<Line>,
    /// What is only counted.
    pub(super) shadows: Vec<Quota>,
    /// How many descriptors there are, with or without a budget.
    pub(super) descriptors: usize,
}

/// One charge of a descriptor.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// The position of its descriptor.
    pub(super) descriptor: usize,
    pub(super) quota: Quota,
    /// Whether it is only looked at, at the cost of one hit.
    pub(super) is_peek: bool,
}

impl Asked {
    /// What the policy charges the descriptors of a request.
    pub(super) fn of(request: &RateLimitRequest, policy: &Policy) -> Result<Self, Invalid> {
        check(request)?;
        let mut asked = Self { descriptors: request.descriptors.len(), ..Self::default() };
        for (i, descriptor) in request.descriptors.iter().enumerate() {
            let entries: Vec<(&str, &str)> =
                descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str())).collect();
            // The first that fits has it, so that one value may have a rule of its own before that for all values.
            let fits =
                |rule: &&crate::policy::Descriptor| rule.matches(&request.domain, entries.iter().copied());
            let Some(rule) = policy.descriptors.iter().find(fits) else { continue };
            let headers = HeaderMap::new();
            let facts = Facts { entries: &entries, ..Facts::of_headers(&headers) };
            let budgets = rule.budgets.iter().map(|&index| &policy.budgets[index]);
            let charges = Charges::of(budgets, &facts).map_err(|_| Invalid::Malformed(i))?;
            let hits = hits(request, descriptor);
            let counted = |quota: Quota| {
                let cost = Cost::new(quota.charge.cost.tokens() * hits.max(1) as f64);
                let cost = cost.unwrap_or(quota.charge.cost); // Finite: no cost is near the largest number.
                quota.cost(cost)
            };
            let lines = charges.quotas.into_iter();
            asked.lines.extend(lines.map(|quota| Line {
                descriptor: i,
                quota: counted(quota),
                is_peek: hits == 0,
            }));
            if hits > 0 {
                asked.shadows.extend(charges.shadows.into_iter().map(counted));
            }
        }
        match asked.lines.len() + asked.shadows.len() {
            too_many if too_many > MAX_CHARGES => Err(Invalid::Charges(too_many)),
            _ => Ok(asked),
        }
    }

    /// How each line stood: those that are to be debited as the take has them, and the others as they were before.
    pub(super) fn debited(&self, mut before: Vec<Stood>, taken: Vec<Stood>) -> Vec<Stood> {
        let debited = before.iter_mut().zip(&self.lines).filter(|(_, line)| !line.is_peek);
        for ((stood, _), after) in debited.zip(taken) {
            *stood = after;
        }
        before
    }

    /// All charges, or only those that are to be debited.
    pub(super) fn quotas(&self, with_peeks: bool) -> Vec<Quota> {
        let lines = self.lines.iter().filter(|line| with_peeks || !line.is_peek);
        lines.map(|line| line.quota.clone()).collect()
    }
}

/// A descriptor's own addend, else the request's, of which 0 is as if it were not set.
fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> u64 {
    match &descriptor.hits_addend {
        Some(own) => own.value,
        None => u64::from(request.hits_addend.max(1)),
    }
}

fn check(request: &RateLimitRequest) -> Result<(), Invalid> {
    if request.domain.is_empty() {
        return Err(Invalid::NoDomain);
    }
    match request.descriptors.len() {
        0 => return Err(Invalid::NoDescriptor),
        too_many if too_many > MAX_DESCRIPTORS => return Err(Invalid::Descriptors(too_many)),
        _ => {}
    }
    let is_long = |text: &str| text.chars().nth(MAX_TEXT_CHARS).is_some();
    for (i, descriptor) in request.descriptors.iter().enumerate() {
        if descriptor.entries.len() > MAX_ENTRIES {
            return Err(Invalid::Entries(i));
        }
        if descriptor.is_negative_hits {
            return Err(Invalid::Negative(i));
        }
        if descriptor.entries.iter().any(|entry| is_long(&entry.key)) {
            return Err(Invalid::Text);
        }
    }
    if is_long(&request.domain) { Err(Invalid::Text) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use admit::{Key, Scope, Standing, Wait};
    use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;

    use super::*;
    use crate::envoy::status::statuses;

    /// A take that was refused although a look had said that it fits told how its own lines stood, and that was read as how all
    /// lines stood: OVER_LIMIT came to a descriptor that was only looked at.
    #[test]
    fn a_refused_take_is_told_of_the_descriptors_that_it_was_for() {
        let line = |descriptor, is_peek| Line {
            descriptor,
            quota: Quota::new(Scope::from_static("x"), Key::of("k"), "3/hour".parse().unwrap(), ""),
            is_peek,
        };
        let lines = vec![line(0, true), line(1, false), line(2, true), line(3, false)];
        let asked = Asked { lines, shadows: Vec::new(), descriptors: 4 };
        let fits = Stood::Refused(Standing { level: Some(2.0), wait: None });
        let wait = Some(Wait::After(Duration::from_secs(1)));
        let over = Stood::Refused(Standing { level: Some(0.0), wait });
        let stood = asked.debited(vec![Stood::Left(1.0); 4], vec![fits, over]);
        let told: Vec<_> =
            statuses(&asked, &stood).iter().map(|status| (status.code(), status.limit_remaining)).collect();
        assert_eq!(told, [(Code::Ok, 1), (Code::Ok, 2), (Code::Ok, 1), (Code::OverLimit, 0)]);
    }
}
