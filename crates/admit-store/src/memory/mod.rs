//! Buckets and records in the memory of one process: the reference store, and the fastest.
//!
//! It forgets everything when the process ends, so a restart grants every bucket's burst anew. It is bounded: a bucket is
//! dropped for another only once it is full under every budget that took from it, so that the next take mints what it
//! held (a burst that is raised after that is minted whole). Where none can be dropped, a key that has no bucket yet is
//! *unavailable*, never unlimited.

mod buckets;
mod records;
mod table;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Terms, Ticket};
use admit::{
    BudgetStore, Charge, Clock, Decision, IdempotencyError, IdempotencyStore, MonotonicClock, Now, Prepared,
    Rules, TakeError, Timestamp, Unavailable,
};

use crate::leader::{Held, Leader, Leadership};
use buckets::Buckets;
use records::Records;

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
pub struct MemoryStore(Arc<Inner>);

struct Inner {
    rules: Rules,
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

impl MemoryStore {
    /// An empty store with the default [`Limits`], on a [`MonotonicClock`].
    pub fn new(rules: Rules) -> Self {
        Self::with(rules, Limits::default(), MonotonicClock::start())
    }

    /// An empty store that reads `clock` where a caller passes [`Now::Store`].
    pub fn with(rules: Rules, limits: Limits, clock: impl Clock + 'static) -> Self {
        Self(Arc::new(Inner {
            buckets: Buckets::new(limits.max_buckets),
            records: Records::new(limits.max_records, limits.max_record_bytes),
            leaderships: Mutex::new(HashMap::new()),
            clock: Box::new(clock),
            rules,
        }))
    }

    /// How many buckets there are.
    pub fn bucket_count(&self) -> usize {
        self.0.buckets.len()
    }

    fn at(&self, now: Now) -> Timestamp {
        now.or_by(&*self.0.clock)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("rules", &self.0.rules)
            .field("buckets", &self.bucket_count())
            .finish_non_exhaustive()
    }
}

impl BudgetStore for MemoryStore {
    fn rules(&self) -> &Rules {
        &self.0.rules
    }

    async fn take(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        match self.0.rules.prepare(charges)? {
            Prepared::Decided(decision) => Ok(decision),
            Prepared::Ask(take) => Ok(self.0.buckets.take(&self.0.rules, &take, || self.at(now))?),
        }
    }

    async fn peek(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        match self.0.rules.prepare(charges)? {
            Prepared::Decided(decision) => Ok(decision),
            Prepared::Ask(take) => Ok(self.0.buckets.peek(&self.0.rules, &take, self.at(now))?),
        }
    }

    async fn refund(&self, charges: &[Charge]) -> Result<(), TakeError> {
        let take = self.0.rules.prepare_refund(charges)?;
        Ok(self.0.buckets.refund(&self.0.rules, &take)?)
    }

    async fn delete_idle(&self, now: Now) -> Result<u64, Unavailable> {
        Ok(self.0.buckets.delete_idle(&self.0.rules, self.at(now)))
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
        Ok(self.0.records.look(*key, *fingerprint, terms, self.at(now)))
    }

    async fn claim(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Claim, Unavailable> {
        self.0.records.claim(*key, *fingerprint, terms, self.at(now))
    }

    async fn renew(&self, ticket: &Ticket, terms: &Terms, now: Now) -> Result<Ticket, IdempotencyError> {
        Ok(self.0.records.renew(ticket, terms, self.at(now))?)
    }

    async fn complete(
        &self,
        ticket: &Ticket,
        outcome: &Outcome,
        terms: &Terms,
        now: Now,
    ) -> Result<(), IdempotencyError> {
        Ok(self.0.records.complete(ticket, outcome, terms, self.at(now))?)
    }

    async fn release(&self, ticket: &Ticket, now: Now) -> Result<(), IdempotencyError> {
        Ok(self.0.records.release(ticket, self.at(now))?)
    }

    async fn delete_expired(&self, now: Now) -> Result<u64, Unavailable> {
        Ok(self.0.records.delete_expired(self.at(now)))
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
        let mut held = self.0.leaderships.lock().unwrap_or_else(PoisonError::into_inner);
        if !held.contains_key(name) && held.len() >= MAX_LEADERSHIPS {
            return Err(unavailable(Full { what: "leaderships", max: MAX_LEADERSHIPS }));
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
        self.0.buckets.bucket(&self.0.rules, scope, *key).expect("the scope is known")
    }

    async fn record(&self, key: &RecordKey) -> Option<admit::idempotency::Record> {
        self.0.records.record(*key)
    }
}
