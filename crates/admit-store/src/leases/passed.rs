//! What leases do not touch.

use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Terms, Ticket};
use admit::{IdempotencyError, IdempotencyStore, Now, Unavailable};

use super::Leased;
use crate::{Leader, Leadership};

impl<S: IdempotencyStore> IdempotencyStore for Leased<S> {
    async fn look(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Option<Claim>, Unavailable> {
        self.store.look(key, fingerprint, terms, now).await
    }

    async fn claim(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Claim, Unavailable> {
        self.store.claim(key, fingerprint, terms, now).await
    }

    async fn renew(&self, ticket: &Ticket, terms: &Terms, now: Now) -> Result<Ticket, IdempotencyError> {
        self.store.renew(ticket, terms, now).await
    }

    async fn complete(
        &self,
        ticket: &Ticket,
        outcome: &Outcome,
        terms: &Terms,
        now: Now,
    ) -> Result<(), IdempotencyError> {
        self.store.complete(ticket, outcome, terms, now).await
    }

    async fn release(&self, ticket: &Ticket, now: Now) -> Result<(), IdempotencyError> {
        self.store.release(ticket, now).await
    }

    async fn delete_expired(&self, now: Now) -> Result<u64, Unavailable> {
        self.store.delete_expired(now).await
    }
}

impl<S: Leader> Leader for Leased<S> {
    async fn lead(
        &self,
        name: &str,
        holder: &str,
        lease: Duration,
        now: Now,
    ) -> Result<Option<Leadership>, Unavailable> {
        self.store.lead(name, holder, lease, now).await
    }
}

#[cfg(feature = "conformance")]
impl<S: crate::conformance::Inspect + Sync> crate::conformance::Inspect for Leased<S> {
    /// As the store has it: what is held is not in it.
    async fn bucket(&self, scope: &admit::Scope, key: &admit::Key) -> Option<admit::Bucket> {
        self.store.bucket(scope, key).await
    }

    async fn record(&self, key: &RecordKey) -> Option<admit::idempotency::Record> {
        self.store.record(key).await
    }
}
