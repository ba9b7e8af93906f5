//! What a request is charged.

use std::borrow::Cow;
use std::time::Duration;

use admit::{Bucket, Budget, Charge, Cost, Key, Scope, Timestamp};

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
    /// The largest integer of a structured field (RFC 9651, section 3.3.1).
    pub const MAX_TOLD: u64 = 999_999_999_999_999;

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

    /// Whether a request with these runs if they cannot be evaluated.
    pub(crate) fn all_fail_open(quotas: &[Self]) -> bool {
        quotas.iter().all(|quota| quota.on_unavailable == OnUnavailable::FailOpen)
    }

    /// How long a bucket of this budget that holds `tokens` takes to be full again.
    pub fn time_until_full(&self, tokens: f64) -> Duration {
        let bucket = Bucket { tokens, refilled_at: Timestamp::MIN };
        bucket.time_until_full(self.charge.budget, Timestamp::MIN)
    }

    /// The name of the policy.
    pub fn name(&self) -> &str {
        self.charge.scope.as_str()
    }

    /// The burst in whole tokens, as clients are told it: rounded down, at least 1, and no more than
    /// [`Quota::MAX_TOLD`].
    ///
    /// A burst below 1 allows something, of a cost below 1, and 0 would say that it allows nothing. The
    /// [window](Quota::window_seconds) then is that of one token, so that the two together state the true rate.
    pub fn whole_tokens(&self) -> u64 {
        (self.charge.budget.burst().tokens() as u64).clamp(1, Self::MAX_TOLD) // `as` rounds down.
    }

    /// The window in whole seconds, rounded up and at least 1: how long [`Quota::whole_tokens`] take to refill. So no
    /// client is told a higher rate than it has.
    pub fn window_seconds(&self) -> u64 {
        let seconds = self.whole_tokens() as f64 / self.charge.budget.rate().tokens_per_second();
        let micros = (seconds * 1e6).round(); // As exact as the bucket law: 100/hour is 3600 s, and not a bit more.
        ((micros / 1e6).ceil() as u64).clamp(1, Self::MAX_TOLD)
    }
}

/// Whole seconds, rounded up, as clients are told them.
pub fn whole_seconds(duration: Duration) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn told(budget: &str) -> (u64, u64) {
        let quota = Quota::new(Scope::from_static("x"), Key::of("k"), budget.parse().unwrap(), "reason");
        (quota.whole_tokens(), quota.window_seconds())
    }

    #[test]
    fn whole_bursts_are_told_with_the_time_they_take_to_fill() {
        assert_eq!(told("100/hour"), (100, 3_600));
        assert_eq!(told("10/second"), (10, 1));
        assert_eq!(told("1000/hour burst 10"), (10, 36));
        assert_eq!(told("10/hour burst 1000"), (1_000, 360_000));
        assert_eq!(told("100/second burst 10"), (10, 1), "a window is no shorter than a second");
        for n in 1..2_000 {
            assert_eq!(told(&format!("{n}/day")), (n, 86_400));
        }
    }

    /// Once a burst below 1 was told as 0, which reads as if nothing were allowed.
    #[test]
    fn a_burst_below_one_is_told_as_one_token_in_a_longer_window() {
        assert_eq!(told("0.5/second"), (1, 2));
        assert_eq!(told("0.1/second burst 0.5"), (1, 10));
        assert_eq!(told("1000/second burst 0.5"), (1, 1));
        assert_eq!(told("0.000000001/second burst 0.000000001"), (1, 1_000_000_000));
    }

    /// Once the whole tokens of a burst were told with the time that its fraction takes too, 2 in 5 s for 0.5 a second.
    #[test]
    fn the_fraction_of_a_burst_is_left_out_of_the_window_too() {
        assert_eq!(told("0.5/second burst 2.5"), (2, 4));
        assert_eq!(told("1.9/minute"), (1, 32));
    }

    #[test]
    fn what_no_structured_field_holds_is_cut_off_and_tells_no_higher_rate() {
        assert_eq!(told("9007199254740992/second"), (Quota::MAX_TOLD, 1));
        assert_eq!(told("1/second burst 9007199254740992"), (Quota::MAX_TOLD, Quota::MAX_TOLD));
        assert_eq!(told("0.001/second burst 9007199254740992"), (Quota::MAX_TOLD, Quota::MAX_TOLD));
    }
}
