//! Buckets and records in the memory of one process: the reference store, and the fastest.
//!
//! It forgets everything when the process ends, so a restart grants every bucket's burst anew. It is bounded: a bucket is
//! dropped for another only once it is full under every budget that took from it, so that the next take mints what it
//! held (a burst that is raised after that is minted whole). Where none can be dropped, a key that has no bucket yet is
//! *unavailable*, never unlimited.

mod buckets;
mod operations;
mod records;
mod scopes;
mod sweep_retention;
mod table;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Terms, Ticket};
use admit::{
    BudgetStore, Charge, Clock, Decision, IdempotencyError, IdempotencyStore, MonotonicClock, Now, Prepared,
    Rules, TakeError, Timestamp, Unavailable, UnavailableKind,
};

use crate::leader::{Held, Leader, Leadership};
use buckets::Buckets;
use records::Records;
use scopes::{Numbered, ScopeNumbers};
use sweep_retention::SweepRetention;

pub use scopes::TooManyScopes;

/// The most names of leaderships; they are constants in the code of services.
const MAX_LEADERSHIPS: usize = 1_000;

/// What a [`MemoryStore`] may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most buckets. Default 1,000,000, some 120 MB.
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
    clock: Box<dyn Clock>,
    buckets: Buckets,
    records: Records,
    leaderships: Mutex<HashMap<String, Held>>,
}

/// Every place of a bounded table is in use, as far as it was looked for one that is not.
#[derive(Debug, thiserror::Error)]
#[error("all {max} {what} are in use; none was found that could be dropped without forgetting what it holds")]
struct Full {
    what: &'static str,
    max: usize,
}

fn unavailable(cause: impl std::error::Error + Send + Sync + 'static) -> Unavailable {
    Unavailable::new("memory", cause)
}

impl From<Full> for Unavailable {
    fn from(full: Full) -> Self {
        unavailable(full).of_kind(UnavailableKind::Full)
    }
}

impl MemoryStore {
    /// An empty store with the default [`Limits`], on a [`MonotonicClock`].
    pub fn new(rules: Rules) -> Self {
        Self::with(rules, Limits::default(), MonotonicClock::start())
    }

    /// An empty store that reads `clock` where a caller passes [`Now::Store`].
    pub fn with(rules: Rules, limits: Limits, clock: impl Clock + 'static) -> Self {
        let scopes = ScopeNumbers::default();
        let retention = SweepRetention::new(rules.retention);
        #[allow(clippy::expect_used)]
        // A set of scopes has at most `Scopes::MAX`, and none were there before.
        let numbered = scopes.number(rules).expect("the first scopes fit");
        let state = State {
            buckets: Buckets::new(limits.max_buckets),
            records: Records::new(limits.max_records, limits.max_record_bytes),
            leaderships: Mutex::new(HashMap::new()),
            clock: Box::new(clock),
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

    fn at(&self, now: Now) -> Timestamp {
        now.or_by(&*self.state.clock)
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

    async fn take(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        match self.numbered.rules.prepare(charges)? {
            Prepared::Decided(decision) => Ok(decision),
            Prepared::Ask(take) => Ok({
                let retention = self.state.retention.duration();
                self.state.buckets.take(&self.numbered, retention, &take, || self.at(now))?
            }),
        }
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
        Ok(self.state.buckets.delete_idle(self.state.retention.duration(), self.at(now)))
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
