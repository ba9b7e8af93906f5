//! How large the next slice of a bucket should be.

use std::time::Duration;

use admit::{Budget, Cost, Timestamp};

/// A slice that is used up sooner was too small: the next one is twice as large.
const QUICK: Duration = Duration::from_millis(100);

/// A slice that lasts longer was too large: the next one is what is used up in this time.
const SLOW: Duration = Duration::from_secs(1);

/// How long the store is asked for costs alone, after a slice that was refused, had no answer, or had lapsed when it was
/// there; twice as long after the next one, and so on up to the longest. A slice that is used up begins anew.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(3_200);

/// A slice of a full bucket should outlast the way to the store and back by this factor: it lapses at the rate of the bucket,
/// and what lapses would have run over the edge.
const ROUND_TRIPS: f64 = 32.0;

/// A slice is for no more costs than this: of more, doubles round away a part of it that counts.
const MOST_COSTS: f64 = (1_u64 << 32) as f64;

/// What is asked of one bucket here. It decides about speed and waste, and about no grant.
#[derive(Debug)]
pub(super) struct Demand {
    /// How large the next slice should be for what is asked for.
    size: f64,
    /// How large it should be to be there for a while, the bucket being full.
    outlasting: f64,
    /// What the bucket held when the store last told, and when it was asked.
    seen: Option<(f64, Timestamp)>,
    paused_until: Timestamp,
    /// How long the next pause is.
    pause: Duration,
    /// What those want who wait for the slice that is on its way.
    waiting: f64,
    /// What those wanted who waited for the one before.
    wanted: f64,
}

impl Demand {
    pub(super) fn new() -> Self {
        Self {
            size: 0.0,
            outlasting: 0.0,
            seen: None,
            paused_until: Timestamp::MIN,
            pause: PAUSE,
            waiting: 0.0,
            wanted: 0.0,
        }
    }

    /// What to ask the store for beyond the `cost`: nothing, or as much as makes it up to the `most` that may be held, a multiple
    /// of the cost so that nothing remains that is too little for the next. Half of what the bucket is thought to hold is left
    /// to others.
    pub(super) fn next(&mut self, cost: f64, most: f64, budget: Budget, now: Timestamp) -> Cost {
        self.size = self.size.max(cost).min(most);
        let wanted = std::mem::take(&mut self.wanted);
        let Some((level, then)) = self.seen.filter(|_| now >= self.paused_until) else { return Cost::ZERO };
        let refilled = now.since(then).as_secs_f64() * budget.rate().tokens_per_second();
        let there = (level + refilled).min(budget.burst().tokens());
        let outlasting = if now.since(then) <= QUICK { self.outlasting } else { 0.0 };
        let amount = self.size.max(wanted).max(outlasting).min(most).min(there / 2.0);
        let costs = (amount / cost).floor();
        let is_slice = (2.0..=MOST_COSTS).contains(&costs); // A cost may be so small that the quotient is infinite.
        if is_slice { Cost::new((costs - 1.0) * cost).unwrap_or(Cost::ZERO) } else { Cost::ZERO }
    }

    /// Somebody waits for the slice that is on its way.
    pub(super) fn waits(&mut self, cost: f64) {
        self.waiting += cost;
    }

    /// Nobody waits any more.
    pub(super) fn arrived(&mut self) {
        self.wanted = std::mem::take(&mut self.waiting);
    }

    /// What was debited was used up after this time.
    pub(super) fn used_up(&mut self, lasted: Duration, was_slice: bool) {
        if lasted <= QUICK {
            self.size *= 2.0;
            if was_slice {
                self.pause = PAUSE;
            }
        } else if lasted > SLOW {
            self.size *= SLOW.as_secs_f64() / lasted.as_secs_f64();
        }
    }

    /// A slice was not used up before it lapsed.
    pub(super) fn lapsed(&mut self) {
        self.size /= 2.0;
    }

    /// The store held `level` before a debit, and holds `left`. It was asked at `since`, and answered at `now`.
    pub(super) fn told(&mut self, level: f64, left: f64, budget: Budget, since: Timestamp, now: Timestamp) {
        self.seen = Some((left, since));
        let round_trip = now.since(since).as_secs_f64();
        let refilled = round_trip * ROUND_TRIPS * budget.rate().tokens_per_second();
        // Nearly full, or it would not be refilled before that.
        self.outlasting = if level + refilled >= budget.burst().tokens() { refilled } else { 0.0 };
    }

    /// Whether the next slice of a full bucket is larger than one of so many tokens.
    pub(super) fn asks_for_more(&self, than: f64, most: f64) -> bool {
        self.outlasting > than && most > than
    }

    /// The store refused what was asked for at `since`; the bucket held `level`.
    pub(super) fn refused(&mut self, level: Option<f64>, since: Timestamp) {
        self.seen = level.map(|level| (level, since)).or(self.seen);
    }

    /// Slices are of no use for the time being.
    pub(super) fn pause(&mut self, now: Timestamp) {
        self.size /= 2.0;
        self.paused_until = now.saturating_add(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}
