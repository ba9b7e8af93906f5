//! Buckets and records in the memory of one process: the reference store, and the fastest.
//!
//! It forgets everything when the process ends, so a restart grants every bucket's burst anew. It is bounded: a bucket is
//! dropped for another only once it is full under every budget that took from it, so that the next take mints what it
//! held (a burst that is raised after that is minted whole). Where none can be dropped, a key that has no bucket yet is
//! *unavailable*, never unlimited.

mod buckets;
mod clock;
mod full;
mod kept;
mod operations;
mod primitives;
mod records;
mod scopes;
mod slots;
mod sweep_retention;
mod table;
#[cfg(test)]
mod table_bounds;

use std::collections::HashMap;
use std::fmt;
use std::future::{self, Future};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Terms, Ticket};
use admit::{
    AdmissionError, AdmissionStore, BudgetStore, Charge, Clock, Decision, IdempotencyError, IdempotencyStore,
    Now, Prepared, Rules, TakeError, Timestamp, Unavailable, Verdict,
};

use crate::leader::{Held, Leader, Leadership};
use buckets::{Buckets, Moment};
use clock::{CounterClock, StoreClock};
use full::Full;
use records::Records;
use scopes::{Numbered, ScopeNumbers};
use sweep_retention::SweepRetention;

pub use scopes::TooManyScopes;

/// The most names of leaderships; they are constants in the code of services.
const MAX_LEADERSHIPS: usize = 1_000;

/// What a [`MemoryStore`] may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most buckets. Default 1,000,000, some 60 MB.
    pub max_buckets: usize,
    /// The most idempotency records. Default 100,000.
    pub max_records: usize,
    /// The most bytes of headers and bodies in all records together; a response that does not fit leaves a tombstone.
    /// Default 256 MiB.
    pub max_record_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_buckets: 1_000_000, max_records: 100_000, max_record_bytes: 256 << 20 }
    }
}

/// A store in the memory of this process. Clones share it.
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<State>,
    numbered: Arc<Numbered>,
}

struct State {
    scopes: ScopeNumbers,
    retention: SweepRetention,
    clock: StoreClock,
    buckets: Buckets,
    records: Records,
    leaderships: Mutex<HashMap<String, Held>>,
}

/// When one call of a store decides.
struct CallMoment<'a> {
    now: &'a Now,
    clock: &'a StoreClock,
}

impl MemoryStore {
    /// An empty store with the default [`Limits`]. The first of a process may take 200 ms to measure the processor's counter.
    pub fn new(rules: Rules) -> Self {
        Self::with_limits(rules, Limits::default())
    }

    /// An empty store. Its clock is the machine's monotonic clock, started at the wall clock's time when the process first
    /// made such a store, and read by the processor's counter: to the microsecond, and within two milliseconds where that
    /// counter is not to be trusted.
    pub fn with_limits(rules: Rules, limits: Limits) -> Self {
        Self::on(StoreClock::Counter(CounterClock::start()), rules, limits)
    }

    /// An empty store that reads `clock` where a caller passes [`Now::Store`].
    pub fn with(rules: Rules, limits: Limits, clock: impl Clock + 'static) -> Self {
        Self::on(StoreClock::Given(Box::new(clock)), rules, limits)
    }

    fn on(clock: StoreClock, rules: Rules, limits: Limits) -> Self {
        let scopes = ScopeNumbers::default();
        let retention = SweepRetention::new(rules.retention);
        #[allow(clippy::expect_used)]
        // A set of scopes has at most `Scopes::MAX`, and none were there before.
        let numbered = scopes.number(rules).expect("the first scopes fit");
        let state = State {
            buckets: Buckets::new(limits.max_buckets),
            records: Records::new(limits.max_records, limits.max_record_bytes),
            leaderships: Mutex::new(HashMap::new()),
            clock,
            retention,
            scopes,
        };
        Self { state: Arc::new(state), numbered: Arc::new(numbered) }
    }

    /// A handle of the same buckets and records that holds takes to other rules. Handles with the rules before go on.
    ///
    /// # Errors
    /// [`TooManyScopes`] if, with those of all rules before, there are more than 65,535 scopes.
    pub fn with_rules(&self, rules: Rules) -> Result<Self, TooManyScopes> {
        let retention = rules.retention;
        let numbered = self.state.scopes.number(rules)?;
        self.state.retention.raise(retention);
        Ok(Self { state: self.state.clone(), numbered: Arc::new(numbered) })
    }

    /// How many buckets there are.
    pub fn bucket_count(&self) -> usize {
        self.state.buckets.len()
    }

    /// What [`BudgetStore::take`] does, for code that is not asynchronous: nothing is waited for but a short lock.
    ///
    /// # Errors
    /// As [`BudgetStore::take`].
    pub fn take_now(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        let (state, scopes) = (&*self.state, &*self.numbered);
        match scopes.rules.single(charges) {
            Some(single) => {
                let retention = || state.retention.duration();
                state.buckets.take_single(scopes, retention, &single, &self.moment(&now))
            }
            None => self.take_many(charges, now),
        }
    }

    #[inline(never)] // So that the way of one charge stays short.
    fn take_many(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        let (state, scopes) = (&*self.state, &*self.numbered);
        match scopes.rules.prepare(charges)? {
            Prepared::Decided(decision) => Ok(decision),
            Prepared::Ask(take) => {
                let retention = state.retention.duration();
                Ok(state.buckets.take(scopes, retention, &take, &self.moment(&now))?)
            }
        }
    }

    fn moment<'a>(&'a self, now: &'a Now) -> CallMoment<'a> {
        CallMoment { now, clock: &self.state.clock }
    }

    fn at(&self, now: Now) -> Timestamp {
        self.moment(&now).now()
    }
}

impl Moment for CallMoment<'_> {
    #[inline]
    fn now(&self) -> Timestamp {
        self.now.given().unwrap_or_else(|| self.clock.now())
    }

    fn surely_past(&self) -> Timestamp {
        self.now.given().unwrap_or_else(|| self.clock.surely_past())
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("rules", &self.numbered.rules)
            .field("buckets", &self.bucket_count())
            .finish_non_exhaustive()
    }
}

impl BudgetStore for MemoryStore {
    fn rules(&self) -> &Rules {
        &self.numbered.rules
    }

    fn take(&self, charges: &[Charge], now: Now) -> impl Future<Output = Result<Decision, TakeError>> + Send {
        // Not an async block, which would move what it captured and then the answer once more.
        future::poll_fn(move |_| Poll::Ready(self.take_now(charges, now)))
    }

    async fn peek(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        match self.numbered.rules.prepare(charges)? {
            Prepared::Decided(decision) => Ok(decision),
            Prepared::Ask(take) => Ok(self.state.buckets.peek(&self.numbered, &take, self.at(now))?),
        }
    }

    async fn refund(&self, charges: &[Charge]) -> Result<(), TakeError> {
        let take = self.numbered.rules.prepare_refund(charges)?;
        Ok(self.state.buckets.refund(&self.numbered, &take)?)
    }

    async fn delete_idle(&self, now: Now) -> Result<u64, Unavailable> {
        let past = self.moment(&now).surely_past();
        Ok(self.state.buckets.delete_idle(self.state.retention.duration(), past))
    }
}

impl IdempotencyStore for MemoryStore {
    async fn look(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Option<Claim>, Unavailable> {
        Ok(self.state.records.look(*key, *fingerprint, terms, self.at(now)))
    }

    async fn claim(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Claim, Unavailable> {
        self.state.records.claim(*key, *fingerprint, terms, self.at(now))
    }

    async fn renew(&self, ticket: &Ticket, terms: &Terms, now: Now) -> Result<Ticket, IdempotencyError> {
        Ok(self.state.records.renew(ticket, terms, self.at(now))?)
    }

    async fn complete(
        &self,
        ticket: &Ticket,
        outcome: &Outcome,
        terms: &Terms,
        now: Now,
    ) -> Result<(), IdempotencyError> {
        Ok(self.state.records.complete(ticket, outcome, terms, self.at(now))?)
    }

    async fn release(&self, ticket: &Ticket, now: Now) -> Result<(), IdempotencyError> {
        Ok(self.state.records.release(ticket, self.at(now))?)
    }

    async fn delete_expired(&self, now: Now) -> Result<u64, Unavailable> {
        Ok(self.state.records.delete_expired(self.at(now)))
    }
}

impl AdmissionStore for MemoryStore {
    async fn admit(
        &self,
        charges: &[Charge],
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Verdict, AdmissionError> {
        let take = || self.take_now(charges, now);
        self.numbered.rules.prepare(charges).map_err(TakeError::from)?; // A mistake is one for replays too.
        self.state.records.admit(*key, *fingerprint, terms, self.at(now), take)
    }

    fn admits_in_one_step(&self, _: &[Charge]) -> bool {
        true
    }
}

impl Leader for MemoryStore {
    async fn lead(
        &self,
        name: &str,
        holder: &str,
        lease: Duration,
        now: Now,
    ) -> Result<Option<Leadership>, Unavailable> {
        let now = self.at(now);
        let mut held = self.state.leaderships.lock().unwrap_or_else(PoisonError::into_inner);
        if !held.contains_key(name) && held.len() >= MAX_LEADERSHIPS {
            return Err(Full { what: "leaderships", max: MAX_LEADERSHIPS }.into());
        }
        let granted = Held::lead(held.get(name), holder, lease, now);
        Ok(granted.map(|granted| {
            let leadership = granted.leadership;
            held.insert(name.to_owned(), granted);
            leadership
        }))
    }
}

#[cfg(feature = "conformance")]
impl crate::conformance::Inspect for MemoryStore {
    #[allow(clippy::expect_used)] // For tests.
    async fn bucket(&self, scope: &admit::Scope, key: &admit::Key) -> Option<admit::Bucket> {
        self.state.buckets.bucket(&self.numbered, scope, *key).expect("the scope is known")
    }

    async fn record(&self, key: &RecordKey) -> Option<admit::idempotency::Record> {
        self.state.records.record(*key)
    }
}
