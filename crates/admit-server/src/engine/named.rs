//! Charges on budgets that a caller names, with whose they are and how much.

use std::net::IpAddr;

use admit::{Cost, Key};
use admit_tower::Quota;

use super::charging::quota;
use super::key::{self, Stands, of_text};
use crate::policy::{BudgetRule, CostSource, KeyPart};

/// What a caller says of a charge on a budget of the policy.
#[derive(Clone, Debug)]
pub struct Named<'a> {
    /// Whose bucket it is: a text for each part of what the budget is kept by, constants left out.
    pub key: &'a [String],
    /// What it costs, if the budget's own cost does not say so.
    pub cost: Option<Cost>,
    /// What the budget may be sized by.
    pub tenant: Option<&'a str>,
    /// Likewise.
    pub plan: Option<&'a str>,
}

/// What a caller said of a charge does not fit its budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamedError {
    /// Too few or too many parts of the key.
    #[error("the budget is kept by {by}: its key has {wanted} part{}, and this has {found}", if *wanted == 1 { "" } else { "s" })]
    Parts {
        /// What it is kept by.
        by: String,
        /// How many parts that has, constants left out.
        wanted: usize,
        /// How many there are.
        found: usize,
    },
    /// Not an address.
    #[error("{0:?} is no IP address, and the budget is kept by those")]
    Address(String),
    /// Neither the caller nor the policy says what it costs.
    #[error("what a request costs on this budget is taken from the request, so the call has to say it")]
    Cost,
}

impl Named<'_> {
    /// The charge: on the bucket that a request through any other front has for the same parts.
    ///
    /// # Errors
    /// [`NamedError`] if what was said does not fit the budget.
    pub fn quota(&self, rule: &BudgetRule) -> Result<Quota, NamedError> {
        let cost = match (self.cost, &rule.cost) {
            (Some(cost), _) => cost,
            (None, CostSource::Constant(cost)) => *cost,
            (None, _) => return Err(NamedError::Cost),
        };
        Ok(quota(rule, rule.bucket(self.key)?, cost, self.tenant, self.plan))
    }
}

impl BudgetRule {
    /// The bucket of `key`: a text for each part of what the budget is kept by, constants left out. The same that a
    /// request with these parts has in any front.
    ///
    /// # Errors
    /// [`NamedError`] if the parts do not fit the budget.
    pub fn bucket(&self, key: &[String]) -> Result<Key, NamedError> {
        let parts = &self.by.parts;
        let wanted = parts.iter().filter(|part| !matches!(part, KeyPart::Constant(_))).count();
        if key.len() != wanted {
            return Err(NamedError::Parts { by: self.by.to_string(), wanted, found: key.len() });
        }
        let address = |text: &str| text.parse::<IpAddr>().map_err(|_| NamedError::Address(text.to_owned()));
        let mut given = key.iter().map(String::as_str);
        let stands = parts.iter().map(|part| {
            Ok(match part {
                KeyPart::Constant(text) => Stands::Text(text.into()),
                KeyPart::ApiKey => Stands::Caller(Key::hashed(given.next().unwrap_or_default())),
                KeyPart::Ip => Stands::Client(address(given.next().unwrap_or_default())?),
                _ => Stands::Text(given.next().unwrap_or_default().into()),
            })
        });
        Ok(key::key(&stands.collect::<Result<Vec<_>, NamedError>>()?))
    }
}

/// The bucket that an operator names: by the parts of its key, or by the UUID that a list of buckets shows. Where callers
/// bring their budgets there is no rule, and a key is one text.
///
/// # Errors
/// [`NamedError`] if the parts do not fit the budget.
pub fn named_bucket(rule: Option<&BudgetRule>, key: &[String]) -> Result<Key, NamedError> {
    match (rule, key) {
        (_, [text]) if of_text(text) != Key::hashed(text) => Ok(of_text(text)),
        (Some(rule), parts) => rule.bucket(parts),
        (None, [text]) => Ok(of_text(text)),
        (None, parts) => Err(NamedError::Parts { by: "one text".to_owned(), wanted: 1, found: parts.len() }),
    }
}

#[cfg(test)]
mod tests {
    use admit_tower::strict_json;
    use http::{HeaderMap, Method};

    use super::*;
    use crate::engine::{Charging, Facts};
    use crate::path::Reading;
    use crate::policy::{Identity, Policy};

    fn rule(members: &str) -> BudgetRule {
        let text = format!("keys = \"keys.toml\"\n[budgets.x]\nrate = \"10/second\"\n{members}");
        Policy::parse("test", &text).unwrap().budgets.remove(0)
    }

    fn named(rule: &BudgetRule, key: &[&str]) -> Result<Quota, NamedError> {
        let key: Vec<String> = key.iter().map(|&part| part.to_owned()).collect();
        Named { key: &key, cost: None, tenant: None, plan: None }.quota(rule)
    }

    const ZEROS: &str = "00000000-0000-0000-0000-000000000000";

    /// The mapping stood twice, and differed: a percent sign in a path was two texts, and zeros were refused with 500.
    ///
    /// A service that asks the decision API for `ann` and a gateway that sees `x-user: ann` spend one bucket.
    #[test]
    fn a_named_charge_is_on_the_bucket_of_the_same_request_through_another_front() {
        let mut headers = HeaderMap::new();
        headers.insert("x-user", "ann".parse().unwrap());
        headers.insert("x-zeros", ZEROS.parse().unwrap());
        let reading = Reading::of("/100%25%2Fa%5cb").unwrap();
        let json = strict_json::parse(b"{\"id\": 7.0}").unwrap();
        let identity = Identity { key: Key::hashed("k"), tenant: "acme".into(), plan: None };
        let facts = Facts {
            method: &Method::GET,
            client: "2001:db8::1".parse().unwrap(),
            identity: Some(&identity),
            names: vec![("share".into(), &reading.path[1..])],
            json: Some(&json),
            ..Facts::of_headers(&headers)
        };
        for (by, key) in [
            ("\"header:x-user\"", &["ann"][..]),
            ("\"ip\"", &["2001:db8::7"]),
            ("\"api_key\"", &["k"]),
            ("\"tenant\"", &["acme"]),
            ("\"const:all\"", &[]),
            ("\"header:x-zeros\"", &[ZEROS]),
            ("\"path:share\"", &["100%/a\\b"]),
            ("[\"path:share\", \"ip\"]", &["100%/a\\b", "2001:db8::7"]),
            ("\"json:/id\"", &["7"]),
            ("[\"header:x-user\", \"const:a\", \"ip\", \"api_key\"]", &["ann", "2001:db8::7", "k"]),
        ] {
            let rule = rule(&format!("by = {by}"));
            let quota = rule.quota(&facts).unwrap();
            let bucket = quota.charge.key;
            assert_eq!(named(&rule, key), Ok(quota), "{by}");
            assert_eq!(named_bucket(Some(&rule), &[bucket.to_string()]), Ok(bucket), "{by}");
        }
    }

    #[test]
    fn what_does_not_fit_the_budget_is_told() {
        let error = |members: &str, key: &[&str]| named(&rule(members), key).unwrap_err();
        assert!(matches!(error("by = \"tenant\"", &[]), NamedError::Parts { wanted: 1, found: 0, .. }));
        assert_eq!(error("by = \"ip\"", &["ann"]), NamedError::Address("ann".into()));
        assert_eq!(error("by = \"ip\"\ncost = \"body_bytes\"", &["10.0.0.1"]), NamedError::Cost);
    }
}
