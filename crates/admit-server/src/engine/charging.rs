//! The charges of a request.

use std::borrow::Cow;

use admit::{Cost, Key};
use admit_tower::{Quota, strict_json};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::facts::Facts;
use super::key::{self, Stands};
use crate::policy::{BudgetRule, Carrier, CostSource, KeyPart, KeySource, WhenUnavailable};

/// A request that lacks what its budget asks for, or has it in another form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// No number where the cost is.
    #[error("{0} is not a number of zero or more, and the request costs as much")]
    Cost(String),
    /// Nothing where it says whose idempotency keys it uses.
    #[error(
        "this request has no {0}, or more than one, and its idempotency key is one of the caller's that this names"
    )]
    Nobody(KeyPart),
    /// Nothing known of the length of the body.
    #[error("the body is charged by the byte, and too long to be counted first: send Content-Length")]
    Length,
}

/// How a budget charges requests.
pub trait Charging {
    /// What a request is charged. `reason` is what a client that is refused reads.
    ///
    /// # Errors
    /// [`Malformed`] if the request lacks what the cost is taken from.
    fn quota(&self, facts: &Facts<'_>) -> Result<Quota, Malformed>;
}

impl Charging for BudgetRule {
    fn quota(&self, facts: &Facts<'_>) -> Result<Quota, Malformed> {
        let (tenant, plan) = match facts.identity {
            Some(identity) => (Some(identity.tenant.as_str()), identity.plan.as_deref()),
            None => (None, None),
        };
        Ok(quota(self, key(&self.by, facts), cost(&self.cost, facts)?, tenant, plan))
    }
}

/// A charge on a budget of the policy, whichever front it comes from.
pub(super) fn quota(
    rule: &BudgetRule,
    key: Key,
    cost: Cost,
    tenant: Option<&str>,
    plan: Option<&str>,
) -> Quota {
    let budget = rule.budget_of(tenant, plan);
    let mut quota = Quota::new(rule.scope.clone(), key, budget, rule.reason_of(budget)).cost(cost);
    if rule.spent_by_replays {
        quota = quota.spent_by_replays();
    }
    if rule.when_unavailable == WhenUnavailable::Admit {
        quota = quota.fail_open();
    }
    quota
}

/// Whose idempotency keys a request uses.
///
/// # Errors
/// [`Malformed`] if the request lacks a part of it: callers that are nobody would share their records, and one of them be
/// answered with what another was told.
pub fn tenant(source: &KeySource, facts: &Facts<'_>) -> Result<String, Malformed> {
    let is_missing = |part: &&KeyPart| stands(part, facts).is_nothing();
    match source.parts.iter().find(is_missing) {
        Some(part) => Err(Malformed::Nobody(part.clone())),
        None => Ok(key(source, facts).to_string()),
    }
}

fn key(source: &KeySource, facts: &Facts<'_>) -> Key {
    let parts: Vec<_> = source.parts.iter().map(|part| stands(part, facts)).collect();
    key::key(&parts)
}

/// What a request has for a part of a key.
fn stands<'f>(part: &'f KeyPart, facts: &Facts<'f>) -> Stands<'f> {
    let found = match part {
        KeyPart::ApiKey => {
            return facts.identity.map_or_else(Stands::default, |caller| Stands::Caller(caller.key));
        }
        KeyPart::Ip => return Stands::Client(facts.client),
        KeyPart::Tenant => facts.identity.map(|identity| Cow::Borrowed(identity.tenant.as_str())),
        KeyPart::Header(name) => {
            only(facts.headers, name).flatten().map(|value| String::from_utf8_lossy(value.as_bytes()))
        }
        KeyPart::Path(name) => facts.name(name),
        KeyPart::Query(name) => facts.parameter(name),
        KeyPart::Json(pointer) => {
            // Null is as if it were missing.
            let value = facts.json.and_then(|json| json.pointer(pointer.as_str()));
            value.filter(|value| !value.is_null()).map(strict_json::text)
        }
        KeyPart::Entry(name) => facts.entry(name).map(Cow::Borrowed),
        KeyPart::Constant(text) => Some(Cow::Borrowed(text.as_str())),
    };
    found.map_or_else(Stands::default, Stands::Text)
}

/// The value of a header, if it has one, and nothing in its place if it has several: of these a service may read another one.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<Option<&'h HeaderValue>> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    Some(values.next().is_none().then_some(first))
}

fn cost(source: &CostSource, facts: &Facts<'_>) -> Result<Cost, Malformed> {
    match source {
        CostSource::Constant(cost) => Ok(*cost),
        CostSource::BodyBytes => facts.body_bytes.map(Cost::bytes).ok_or(Malformed::Length),
        CostSource::Carried { from, otherwise } => {
            let (place, carried) = match from {
                Carrier::Header(name) => {
                    let number = |value: &HeaderValue| value.to_str().ok()?.trim().parse().ok();
                    (format!("the header {name}"), only(facts.headers, name).map(|value| number(value?)))
                }
                Carrier::Json(pointer) => {
                    let value = facts.json.and_then(|json| json.pointer(pointer.as_str()));
                    let carried = if facts.is_unreadable { Some(None) } else { value.map(Value::as_f64) };
                    (format!("the member {pointer} of the body"), carried)
                }
            };
            let cost = match (carried, otherwise) {
                (None, Some(cost)) => Some(*cost),
                (carried, _) => carried.flatten().and_then(|number| Cost::new(number).ok()),
            };
            cost.ok_or(Malformed::Cost(place))
        }
    }
}

#[cfg(test)]
mod tests {
    use admit::Scope;
    use admit_tower::client_ip;
    use http::Method;
    use serde_json::json;

    use super::*;
    use crate::policy::{Identity, Policy};

    fn rule(members: &str) -> BudgetRule {
        let text = format!("keys = \"keys.toml\"\n[budgets.x]\nrate = \"10/second\"\n{members}");
        Policy::parse("test", &text).unwrap().budgets.remove(0)
    }

    struct Request {
        headers: HeaderMap,
        identity: Option<Identity>,
        json: Option<Value>,
    }

    impl Request {
        fn facts(&self) -> Facts<'_> {
            Facts {
                method: &Method::GET,
                path: "/p/garden",
                names: vec![("project".into(), "garden")],
                query: Some("a=1&b=x%20y&q=1&q=z"),
                headers: &self.headers,
                client: "203.0.113.9".parse().unwrap(),
                identity: self.identity.as_ref(),
                body_bytes: Some(17),
                json: self.json.as_ref(),
                is_unreadable: false,
                entries: &[],
            }
        }
    }

    fn request() -> Request {
        let mut headers = HeaderMap::new();
        headers.insert("x-user", "ann".parse().unwrap());
        headers.insert("x-cost", "2.5".parse().unwrap());
        let identity = Identity { key: Key::hashed("k"), tenant: "acme".into(), plan: Some("pro".into()) };
        Request {
            headers,
            identity: Some(identity),
            json: Some(json!({"user": {"id": "u"}, "max_tokens": 9})),
        }
    }

    #[test]
    fn a_key_is_what_its_source_names() {
        let request = request();
        let key = |by: &str| rule(&format!("by = {by}")).quota(&request.facts()).unwrap().charge.key;
        assert_eq!(key("\"header:x-user\""), Key::of("ann"));
        assert_eq!(key("\"query:b\""), Key::of("x y"));
        assert_eq!(key("\"json:/user/id\""), Key::of("u"));
        assert_eq!(key("\"json:/max_tokens\""), Key::of("9"));
        assert_eq!(key("\"api_key\""), Key::hashed("k"));
        assert_eq!(key("\"tenant\""), Key::of("acme"));
        assert_eq!(key("\"ip\""), client_ip::key("203.0.113.9".parse().unwrap()));
        assert_eq!(key("\"header:x-none\""), key("\"query:none\""), "what is missing is missing");
        assert_ne!(key("[\"const:ab\", \"const:c\"]"), key("[\"const:a\", \"const:bc\"]"));
    }

    /// Each spelling of a number had a bucket of its own: a client wrote 7, 7.0 and 0.7e1, and the service read seven each time.
    #[test]
    fn a_member_of_a_body_is_one_key_however_it_is_written() {
        let mut request = request();
        let mut key = |id: &str| {
            request.json = Some(strict_json::parse(format!("{{\"id\": {id}}}").as_bytes()).unwrap());
            rule("by = \"json:/id\"").quota(&request.facts()).unwrap().charge.key
        };
        for (plain, others) in [
            ("7", &["7.0", "0.7e1", "70e-1", "\"7\""][..]),
            ("0", &["-0", "0.0", "-0.0e5"]),
            ("0.1", &["1e-1", "0.10"]),
            ("-5", &["-5.0"]),
            ("1152921504606846976", &["1152921504606846976.0", "1.152921504606846976e18"]),
            ("1e30", &["1E+30", "1000000000000000000000000000000"]),
            ("{\"a\": 1, \"b\": [2]}", &["{\"b\":[2.0],\"a\":1e0}"]),
            ("null", &["\"\""]),
        ] {
            for other in others {
                assert_eq!(key(plain), key(other), "{plain} {other}");
            }
        }
        assert_ne!(
            key("9007199254740993"),
            key("9007199254740992"),
            "who has whole numbers for names keeps them apart"
        );
        assert_eq!(key("null"), Key::of(""), "it is as if it were missing");
    }

    /// The first of two counted, and a service that reads the last let each request have a bucket, or a cost, of its own.
    #[test]
    fn what_stands_twice_is_as_if_it_were_missing() {
        let mut request = request();
        request.headers.append("x-user", "bob".parse().unwrap());
        request.headers.append("x-cost", "0".parse().unwrap());
        let key = |by: &str| rule(&format!("by = {by}")).quota(&request.facts()).unwrap().charge.key;
        assert_eq!(key("\"header:x-user\""), key("\"header:x-none\""));
        assert_eq!(key("\"query:q\""), key("\"query:none\""));
        let cost =
            rule("by = \"ip\"\ncost = { from = \"header:x-cost\", otherwise = 4 }").quota(&request.facts());
        assert!(matches!(cost, Err(Malformed::Cost(_))));
    }

    /// A client that sent zeros as its name got 500, and an error in the log.
    #[test]
    fn a_name_of_zeros_has_a_bucket() {
        let mut request = request();
        let zeros = "00000000-0000-0000-0000-000000000000";
        request.headers.insert("x-user", zeros.parse().unwrap());
        let quota = rule("by = \"header:x-user\"").quota(&request.facts()).unwrap();
        assert_eq!(quota.charge.key, Key::hashed(zeros));
    }

    #[test]
    fn a_cost_is_what_its_source_names() {
        let request = request();
        let cost = |cost: &str| {
            rule(&format!("by = \"ip\"\ncost = {cost}"))
                .quota(&request.facts())
                .map(|quota| quota.charge.cost.tokens())
        };
        assert_eq!(cost("3"), Ok(3.0));
        assert_eq!(cost("\"body_bytes\""), Ok(17.0));
        assert_eq!(cost("\"header:x-cost\""), Ok(2.5));
        assert_eq!(cost("\"json:/max_tokens\""), Ok(9.0));
        assert_eq!(cost("{ from = \"header:x-none\", otherwise = 4 }"), Ok(4.0));
        assert!(matches!(cost("\"header:x-none\""), Err(Malformed::Cost(_))));
        assert!(matches!(cost("{ from = \"header:x-user\", otherwise = 4 }"), Err(Malformed::Cost(_))));
    }

    #[test]
    fn a_plan_and_a_tenant_size_the_budget() {
        let (request, mut other) = (request(), request());
        let rule = rule("by = \"tenant\"\nplans.pro = \"100/second\"\ntenants.beta = \"7/second\"");
        let burst = |request: &Request| rule.quota(&request.facts()).unwrap().charge.budget.burst().tokens();
        assert_eq!(burst(&request), 100.0);
        other.identity.as_mut().unwrap().tenant = "beta".into();
        assert_eq!(burst(&other), 7.0);
        other.identity = None;
        assert_eq!(burst(&other), 10.0);
        assert_eq!(rule.scope, Scope::from_static("x"));
    }
}
