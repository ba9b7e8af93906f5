//! Headers that decide about a request: where its body ends, where it goes, who sent it, and what it was charged by. They
//! stand in the head under their own names, and a client takes none of them away: what was charged is what the upstream sees.

use admit_tower::IDEMPOTENCY_KEY;
use http::HeaderMap;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, COOKIE,
    HOST, HeaderName, SET_COOKIE, TRAILER, TRANSFER_ENCODING,
};

use super::forwarded::is_claim;
use super::hop_by_hop;
use crate::policy::{Carrier, CostSource, KeyPart, KeySource, Policy};

const ALWAYS: [HeaderName; 12] = [
    AUTHORIZATION,
    CACHE_CONTROL,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    COOKIE,
    HOST,
    IDEMPOTENCY_KEY,
    SET_COOKIE,
    TRAILER,
    TRANSFER_ENCODING,
];

/// Those of every policy, and those that one charges by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reserved {
    of_policy: Vec<HeaderName>,
}

impl Reserved {
    /// Those that are reserved whatever a policy says.
    pub(super) const ALWAYS: Self = Self { of_policy: Vec::new() };

    /// With those that tell this policy whose bucket a request is charged on, what it costs, and who sent it.
    pub(super) fn of(policy: &Policy) -> Self {
        let header = |part: &KeyPart| match part {
            KeyPart::Header(name) => Some(name.clone()),
            _ => None,
        };
        let keys = |by: &KeySource| by.parts.iter().filter_map(header).collect::<Vec<_>>();
        let costs = policy.budgets.iter().filter_map(|budget| match &budget.cost {
            CostSource::Carried { from: Carrier::Header(name), .. } => Some(name.clone()),
            _ => None,
        });
        let budgets = policy.budgets.iter().flat_map(|budget| keys(&budget.by));
        let idempotency = policy.routes.iter().filter_map(|route| route.idempotency.as_ref());
        let records = idempotency.flat_map(|rule| keys(&rule.by));
        let callers = policy.server.key_headers.iter().cloned();
        let mut of_policy: Vec<HeaderName> = costs.chain(budgets).chain(records).chain(callers).collect();
        of_policy.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        of_policy.dedup();
        Self { of_policy }
    }

    pub(super) fn has(&self, name: &HeaderName) -> bool {
        ALWAYS.contains(name) || is_claim(name) || self.of_policy.contains(name)
    }

    /// Whether servers read the name as one of these, as CGI makes `-` and `_` the same.
    fn is_lookalike(&self, name: &HeaderName) -> bool {
        let read = |name: &HeaderName| name.as_str().replace('_', "-");
        let with_dashes = || read(name).parse().is_ok_and(|read| self.has(&read));
        let has_underscore = |name: &HeaderName| name.as_str().contains('_');
        let alike =
            |known: &HeaderName| (has_underscore(name) || has_underscore(known)) && read(name) == read(known);
        let is_read_as_one = has_underscore(name) && with_dashes() || self.of_policy.iter().any(alike);
        is_read_as_one && !self.has(name)
    }

    /// Removes headers under other names that servers read as these.
    pub(super) fn drop_lookalikes(&self, headers: &mut HeaderMap) {
        remove(headers, |name| self.is_lookalike(name));
    }

    /// Removes them from trailers, where none may stand (RFC 9110, section 6.5.1).
    pub(super) fn drop_from_trailers(&self, trailers: &mut HeaderMap) {
        hop_by_hop::strip(trailers, self);
        self.drop_lookalikes(trailers);
        remove(trailers, |name| self.has(name));
    }
}

/// Removes the headers whose name is one of those.
pub(super) fn remove(headers: &mut HeaderMap, is_one: impl Fn(&HeaderName) -> bool) {
    let names: Vec<HeaderName> = headers.keys().filter(|name| is_one(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn what_a_policy_charges_by_is_reserved_under_every_name_that_servers_read_as_its_own() {
        let text = r#"
            key_headers = ["x-token"]
            [budgets.x]
            rate = "1/hour"
            by = ["header:x-user", "header:x_team"]
            cost = { from = "header:x-cost", otherwise = 9 }
            [[routes]]
            match = "POST /"
            idempotency = { key = "header", by = "header:x-shop" }
        "#;
        let reserved = Reserved::of(&Policy::parse("test", text).unwrap());
        let left = |names: &[&'static str]| {
            let names =
                names.iter().map(|name| (HeaderName::from_static(name), HeaderValue::from_static("1")));
            let mut headers = HeaderMap::from_iter(names);
            reserved.drop_lookalikes(&mut headers);
            let mut left: Vec<_> = headers.keys().map(|name| name.as_str().to_owned()).collect();
            left.sort_unstable();
            left
        };
        let own = ["host", "idempotency-key", "x-cost", "x-shop", "x-token", "x-user", "x_team"];
        assert_eq!(left(&own), own);
        assert!(own.iter().all(|name| reserved.has(&HeaderName::from_static(name))));
        assert!(
            left(&["x_user", "x_cost", "x-team", "x_token", "x_shop", "idempotency_key", "x_real-ip"])
                .is_empty()
        );
        assert_eq!(left(&["x_other", "x-other"]), ["x-other", "x_other"]);
    }
}
