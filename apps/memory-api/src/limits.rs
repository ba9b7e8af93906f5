//! How much each API key may call.
//!
//! | endpoint | an hour | a second |
//! | --- | --- | --- |
//! | `POST /memory/ingest` | 100 (`MEM_RATE_LIMIT_INGEST`) | 10 (`MEM_RATE_LIMIT_BURST`) |
//! | `GET /memory/query` | 1000 (`MEM_RATE_LIMIT_QUERY`) | 10 |
//! | `GET /memory/projects` | 100 (`MEM_RATE_LIMIT_PROJECTS`) | 10 |
//! | `GET /memory/skills` | unlimited (`MEM_RATE_LIMIT_SKILLS`) | 10 |
//! | `GET /memory/jobs/{id}` | unlimited | 10 |
//!
//! Both limits of a request are taken together, or none is. Each API key has buckets of its own for each endpoint. A
//! request that replays an earlier answer, or is malformed, spends only what it has of the second.

use std::time::Duration;

use admit::{
    Budget, Burst, BurstError, Charge, ChargeError, Key, Rate, RateError, Retention, RetentionError, Rules,
    Scope, Scopes, ScopesError,
};
use admit_tower::Quota;

use crate::config::LimitSettings;
use crate::keys::Caller;

/// The most a second. All endpoints share the scope; a bucket's key tells them apart.
pub const BURST: Scope = Scope::from_static("burst");

/// How long an idle bucket is kept. An hour's budget is full again after an hour, give or take a rounding.
const RETENTION: Duration = Duration::from_secs(2 * 3_600);

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `POST /memory/ingest`.
    Ingest,
    /// `GET /memory/query`.
    Query,
    /// `GET /memory/projects`.
    Projects,
    /// `GET /memory/skills`.
    Skills,
    /// `GET /memory/jobs/{id}`.
    Jobs,
}

impl Endpoint {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Ingest, Self::Query, Self::Projects, Self::Skills, Self::Jobs];

    /// The scope of its hourly budget.
    pub const fn scope(self) -> Scope {
        match self {
            Self::Ingest => Scope::from_static("ingest"),
            Self::Query => Scope::from_static("query"),
            Self::Projects => Scope::from_static("projects"),
            Self::Skills => Scope::from_static("skills"),
            Self::Jobs => Scope::from_static("jobs"),
        }
    }

    /// Its method and path, as a refused client reads them.
    pub const fn request(self) -> &'static str {
        match self {
            Self::Ingest => "POST /memory/ingest",
            Self::Query => "GET /memory/query",
            Self::Projects => "GET /memory/projects",
            Self::Skills => "GET /memory/skills",
            Self::Jobs => "GET /memory/jobs/{id}",
        }
    }
}

/// The budgets of the settings.
#[derive(Clone, Debug)]
pub struct Limits {
    hourly: [Option<Limit>; Endpoint::ALL.len()],
    burst: Limit,
}

#[derive(Clone, Debug)]
struct Limit {
    budget: Budget,
    reason: String,
}

/// Settings that make no budgets. The bounds of the settings leave no room for that; a start that meets it stops.
#[derive(Debug, thiserror::Error)]
pub enum LimitsError {
    /// A rate out of range.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// A burst out of range.
    #[error(transparent)]
    Burst(#[from] BurstError),
    /// A wrong set of scopes.
    #[error(transparent)]
    Scopes(#[from] ScopesError),
    /// A retention out of range.
    #[error(transparent)]
    Retention(#[from] RetentionError),
    /// A budget that no store evaluates.
    #[error(transparent)]
    Charge(#[from] ChargeError),
}

/// What the store is built with: the closed set of scopes.
///
/// # Errors
/// [`LimitsError`] never, for what is written here.
pub fn rules() -> Result<Rules, LimitsError> {
    let scopes = Endpoint::ALL.map(Endpoint::scope).into_iter().chain([BURST]);
    Ok(Rules { scopes: Scopes::new(scopes)?, retention: Retention::new(RETENTION)? })
}

impl Limits {
    /// The budgets of the settings, each checked against the rules of the store.
    ///
    /// # Errors
    /// [`LimitsError`] if a setting makes no budget that the store takes.
    pub fn new(settings: &LimitSettings, rules: &Rules) -> Result<Self, LimitsError> {
        let check = |scope: Scope, budget: Budget| rules.check(&Charge::one(scope, Key::hashed(""), budget));
        let mut hourly = [const { None }; Endpoint::ALL.len()];
        for (endpoint, limit) in Endpoint::ALL.into_iter().zip(&mut hourly) {
            let setting = match endpoint {
                Endpoint::Ingest => settings.ingest,
                Endpoint::Query => settings.query,
                Endpoint::Projects => settings.projects,
                Endpoint::Skills => settings.skills,
                Endpoint::Jobs => None,
            };
            let Some(requests) = setting else { continue };
            let requests = f64::from(requests);
            let budget = Budget::new(Rate::per_hour(requests)?, Burst::new(requests)?);
            check(endpoint.scope(), budget)?;
            let reason = format!("{requests} requests/hour for {}", endpoint.request());
            *limit = Some(Limit { budget, reason });
        }
        let requests = f64::from(settings.burst);
        let budget = Budget::new(Rate::per_second(requests)?, Burst::new(requests)?);
        check(BURST, budget)?;
        Ok(Self { hourly, burst: Limit { budget, reason: format!("{requests} requests/second") } })
    }

    /// What a request of `caller` to `endpoint` is charged.
    pub fn quotas(&self, caller: &Caller, endpoint: Endpoint) -> Vec<Quota> {
        let hourly = self.hourly[endpoint as usize].as_ref();
        let hourly =
            hourly.map(|limit| Quota::new(endpoint.scope(), caller.key, limit.budget, limit.reason.clone()));
        hourly.into_iter().chain([self.burst(caller, endpoint)]).collect()
    }

    /// What is looked at, and never taken, to see whether the store answers.
    pub fn probe(&self) -> Charge {
        Charge::one(BURST, Key::hashed("readiness probe"), self.burst.budget)
    }

    /// What a malformed request is charged.
    pub fn malformed(&self, caller: &Caller, endpoint: Endpoint) -> Vec<Quota> {
        vec![self.burst(caller, endpoint)]
    }

    fn burst(&self, caller: &Caller, endpoint: Endpoint) -> Quota {
        let scope = endpoint.scope();
        let key = Key::hashed([caller.key.as_bytes(), scope.as_str().as_bytes()].concat());
        Quota::new(BURST, key, self.burst.budget, self.burst.reason.clone()).spent_by_replays()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_in_bounds_makes_budgets_that_the_store_takes() {
        let rules = rules().unwrap();
        for limit in [1, 2, 3, 7, 99, 100, 101, 1_000, 86_399, 999_999_937, 1_000_000_000] {
            let hourly = Some(limit);
            let burst = limit.min(1_000_000);
            let settings =
                LimitSettings { ingest: hourly, query: hourly, projects: hourly, skills: hourly, burst };
            let limits = Limits::new(&settings, &rules).unwrap();
            let caller = Caller { tenant: "a".into(), key: Key::hashed("k") };
            for endpoint in Endpoint::ALL {
                for quota in limits.quotas(&caller, endpoint) {
                    let window = if quota.name() == "burst" { 1 } else { 3_600 };
                    assert_eq!(quota.window_seconds(), window, "{limit} for {endpoint:?}");
                }
            }
        }
    }

    #[test]
    fn each_key_and_endpoint_has_buckets_of_its_own() {
        let settings = LimitSettings { ingest: Some(1), query: None, projects: None, skills: None, burst: 1 };
        let limits = Limits::new(&settings, &rules().unwrap()).unwrap();
        let caller = |key: &str| Caller { tenant: "a".into(), key: Key::hashed(key) };
        let mut buckets: Vec<_> = ["k", "l"]
            .into_iter()
            .flat_map(|key| Endpoint::ALL.map(|endpoint| limits.quotas(&caller(key), endpoint)))
            .flatten()
            .map(|quota| (quota.charge.scope, quota.charge.key))
            .collect();
        assert_eq!(buckets.len(), 12);
        buckets.sort();
        buckets.dedup();
        assert_eq!(buckets.len(), 12);
    }
}
