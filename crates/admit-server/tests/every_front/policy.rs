//! The policy of all fronts, in the words of each.

use std::sync::Arc;

use admit::{Cost, Key, Scope};
use admit_server::policy::{Keys, Policy};
use admit_tower::Quota;
use data_encoding::HEXLOWER;
use http::request::Parts;
use sha2::{Digest, Sha256};

/// For fronts of HTTP requests.
pub(crate) const HTTP: &str = r#"
    keys = "keys.toml"
    [budgets.hourly]
    rate = "2/hour"
    by = "header:x-user"
    cost = { from = "header:x-cost", otherwise = 1 }
    [budgets.shared]
    rate = "1/hour"
    by = "header:x-team"
    [budgets.lenient]
    rate = "1/hour"
    by = "header:x-user"
    when_unavailable = "admit"
    [budgets.known]
    rate = "1/hour"
    by = "api_key"

    [[routes]]
    match = "GET /work"
    budgets = ["hourly", "shared"]
    [[routes]]
    match = "GET /lenient"
    budgets = "lenient"
    [[routes]]
    match = "GET /known"
    budgets = "known"
    [[routes]]
    match = "POST /orders"
    idempotency = { by = "header:x-user", key = "header", wait = "20ms" }
"#;

/// For Envoy, whose descriptors have entries and no headers.
pub(crate) const ENVOY: &str = r#"
    [budgets.hourly]
    rate = "2/hour"
    by = "entry:user"
    [budgets.shared]
    rate = "1/hour"
    by = "entry:team"
    [budgets.lenient]
    rate = "1/hour"
    by = "entry:lenient"
    when_unavailable = "admit"

    [[descriptors]]
    entries = { user = "*" }
    budgets = "hourly"
    [[descriptors]]
    entries = { team = "*" }
    budgets = "shared"
    [[descriptors]]
    entries = { lenient = "*" }
    budgets = "lenient"
"#;

pub(crate) const TOKEN: &str = "a-token-of-decisions";

pub(crate) fn parsed(text: &str) -> Arc<Policy> {
    let policy = Policy::parse("test", text);
    Arc::new(policy.unwrap_or_else(|errors| panic!("{:?}", errors.problems())))
}

/// One key is known.
pub(crate) fn keys() -> Arc<Keys> {
    let text = format!("[[keys]]\nsha256 = \"{}\"\ntenant = \"acme\"", hex("known"));
    Arc::new(Keys::parse("keys.toml", &text).unwrap())
}

pub(crate) fn hex(text: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(text))
}

/// The same budgets, as a service with the middleware in it names them.
pub(crate) fn quotas(request: &Parts) -> Vec<Quota> {
    let header = |name: &str| request.headers.get(name).map_or("", |value| value.to_str().unwrap());
    let quota = |scope, budget: &str, name: &str| {
        let budget: admit::Budget = budget.parse().unwrap();
        let reason = format!("{budget} by header:{name}");
        Quota::new(Scope::from_static(scope), Key::of(header(name)), budget, reason)
    };
    match request.uri.path() {
        "/work" => {
            let cost = Cost::new(header("x-cost").parse().unwrap()).unwrap();
            vec![quota("hourly", "2/hour", "x-user").cost(cost), quota("shared", "1/hour", "x-team")]
        }
        "/lenient" => vec![quota("lenient", "1/hour", "x-user").fail_open()],
        _ => Vec::new(),
    }
}
