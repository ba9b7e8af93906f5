//! Buckets in the memory of one process.

use std::sync::atomic::{AtomicU64, Ordering};

use admit::{Bucket, Budget, Burst, Decision, Key, Line, Rate, Rules, Scope, Take, Timestamp, Unavailable};

use super::Full;
use super::table::Table;

/// A bucket's place: the scope by its position in the store's set.
pub(super) type Place = (u16, Key);

pub(super) struct Buckets {
    table: Table<Place, Bucket>,
    slowest: Vec<Slowest>,
    max: usize,
}

impl Buckets {
    pub(super) fn new(max: usize, rules: &Rules) -> Self {
        let slowest = rules.scopes.iter().map(|_| Slowest::default()).collect();
        Self { table: Table::new(max), slowest, max }
    }

    pub(super) fn take(&self, rules: &Rules, take: &Take, now: Timestamp) -> Result<Decision, Unavailable> {
        let places = places(rules, take.lines());
        for (place, line) in places.iter().zip(take.lines()) {
            self.slowest[usize::from(place.0)].note(line.budget);
        }
        if let Some(decision) = self.try_take(&places, take, now) {
            return Ok(decision);
        }
        self.table.evict(|place, bucket| self.is_spare(rules, place, bucket, now));
        self.try_take(&places, take, now)
            .ok_or_else(|| Unavailable::new("memory", Full { what: "buckets", max: self.max }))
    }

    /// Nothing if a bucket is to be minted and there is no room.
    fn try_take(&self, places: &[Place], take: &Take, now: Timestamp) -> Option<Decision> {
        let mut locked = self.table.lock(places);
        let found: Vec<Option<Bucket>> = (0..places.len()).map(|i| locked.get(i).copied()).collect();
        let (decision, debited) = take.decide(now, &found);
        if let Some(debited) = debited {
            if !locked.reserve() {
                return None;
            }
            for (i, bucket) in debited.into_iter().enumerate() {
                locked.put(i, bucket);
            }
        }
        Some(decision)
    }

    /// Whether the next take would mint what this bucket holds.
    fn is_spare(&self, rules: &Rules, place: &Place, bucket: &Bucket, now: Timestamp) -> bool {
        self.slowest[usize::from(place.0)].fills(bucket, now) || is_idle(rules, bucket, now)
    }

    pub(super) fn peek(&self, rules: &Rules, take: &Take, now: Timestamp) -> Decision {
        let places = places(rules, take.lines());
        let locked = self.table.lock(&places);
        let found: Vec<Option<Bucket>> = (0..places.len()).map(|i| locked.get(i).copied()).collect();
        take.peek(now, &found)
    }

    pub(super) fn refund(&self, rules: &Rules, take: &Take) {
        let places = places(rules, take.lines());
        let mut locked = self.table.lock(&places);
        for (i, line) in take.lines().iter().enumerate() {
            if let Some(bucket) = locked.get(i).copied() {
                locked.put(i, bucket.refund(line.cost, line.budget));
            }
        }
    }

    pub(super) fn delete_idle(&self, rules: &Rules, now: Timestamp) -> u64 {
        self.table.retain(|_, bucket| !is_idle(rules, bucket, now))
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    #[cfg(feature = "conformance")]
    pub(super) fn bucket(&self, rules: &Rules, scope: &Scope, key: Key) -> Option<Bucket> {
        let place = [(scope_number(rules, scope), key)];
        self.table.lock(&place).get(0).copied()
    }
}

/// Idle for longer than the retention, so full under every budget that a take may bring.
fn is_idle(rules: &Rules, bucket: &Bucket, now: Timestamp) -> bool {
    now.since(bucket.refilled_at) > rules.retention.duration()
}

fn places(rules: &Rules, lines: &[Line]) -> Vec<Place> {
    lines.iter().map(|line| (scope_number(rules, &line.scope), line.key)).collect()
}

/// A scope that was checked is in the set, whose size fits.
fn scope_number(rules: &Rules, scope: &Scope) -> u16 {
    rules.scopes.iter().as_slice().binary_search(scope).map_or(0, |i| i as u16)
}

/// The smallest rate and the largest burst that takes of one scope brought: a bucket that is full under both is full
/// under each of those budgets. As bit patterns, which order positive numbers as the numbers themselves.
struct Slowest {
    rate: AtomicU64,
    burst: AtomicU64,
}

impl Default for Slowest {
    fn default() -> Self {
        Self { rate: AtomicU64::new(u64::MAX), burst: AtomicU64::new(0) }
    }
}

impl Slowest {
    fn note(&self, budget: Budget) {
        let (rate, burst) = (budget.rate().tokens_per_second().to_bits(), budget.burst().tokens().to_bits());
        if rate < self.rate.load(Ordering::Relaxed) {
            self.rate.fetch_min(rate, Ordering::Relaxed);
        }
        if burst > self.burst.load(Ordering::Relaxed) {
            self.burst.fetch_max(burst, Ordering::Relaxed);
        }
    }

    /// Whether `bucket` is full at `now` under the slowest filling seen.
    fn fills(&self, bucket: &Bucket, now: Timestamp) -> bool {
        let rate = Rate::per_second(f64::from_bits(self.rate.load(Ordering::Relaxed)));
        let burst = Burst::new(f64::from_bits(self.burst.load(Ordering::Relaxed)));
        let (Ok(rate), Ok(burst)) = (rate, burst) else { return false }; // No take came yet.
        bucket.level(Budget::new(rate, burst), now) >= burst.tokens()
    }
}
