//! What a request is charged.

use std::borrow::Cow;
use std::time::Duration;

use admit::{Budget, Charge, Cost, Key, Scope};

/// One line of what a request is charged, and how the client is told of it.
///
/// The policy's name in the `RateLimit` fields is the scope's.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    /// The bucket, the cost and the budget.
    pub charge: Charge,
    /// What a client that is refused reads, as in `100 requests/hour for POST /memory/ingest`.
    pub reason: Cow<'static, str>,
    /// Whether a request that replays an earlier response, or is turned away by its idempotency key, spends this too.
    /// Default: no.
    pub spent_by_replays: bool,
    /// What happens when the store cannot answer. Default: fail closed.
    pub on_unavailable: OnUnavailable,
}

/// What happens to a request whose budget could not be evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// It is answered with 503 and does not run.
    #[default]
    FailClosed,
    /// It runs, uncharged, and is counted ([`Event::FailedOpen`](crate::Event::FailedOpen)). Of several quotas of one
    /// request all have to say so.
    FailOpen,
}

impl Quota {
    /// A quota of one token for each request.
    pub fn new(scope: Scope, key: Key, budget: Budget, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            charge: Charge::one(scope, key, budget),
            reason: reason.into(),
            spent_by_replays: false,
            on_unavailable: OnUnavailable::FailClosed,
        }
    }

    /// Charges `cost` instead of one token.
    #[must_use]
    pub fn cost(mut self, cost: Cost) -> Self {
        self.charge.cost = cost;
        self
    }

    /// Charges replays too: for a cap on requests as such, like a burst cap.
    #[must_use]
    pub fn spent_by_replays(mut self) -> Self {
        self.spent_by_replays = true;
        self
    }

    /// Lets requests run, counted, while the store cannot answer.
    #[must_use]
    pub fn fail_open(mut self) -> Self {
        self.on_unavailable = OnUnavailable::FailOpen;
        self
    }

    /// The name of the policy.
    pub fn name(&self) -> &str {
        self.charge.scope.as_str()
    }

    /// The window in whole seconds, rounded up: how long an empty bucket takes to be full.
    pub fn window_seconds(&self) -> u64 {
        whole_seconds(self.charge.budget.time_to_fill()).max(1)
    }
}

/// Whole seconds, rounded up.
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Says what a request is charged. Closures from the request's head to a list of quotas are policies.
///
/// It runs after authentication, so that it can find out who asks in the request's extensions. An empty list lets the
/// request pass without a question to the store.
pub trait BudgetPolicy: Send + Sync + 'static {
    /// The quotas that this request has to fit into: all, or it is refused and none is charged.
    fn quotas(&self, request: &http::request::Parts) -> Vec<Quota>;
}

impl<F: Fn(&http::request::Parts) -> Vec<Quota> + Send + Sync + 'static> BudgetPolicy for F {
    fn quotas(&self, request: &http::request::Parts) -> Vec<Quota> {
        self(request)
    }
}
