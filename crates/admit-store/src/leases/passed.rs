//! What leases do not touch.

use std::time::Duration;

use admit::idempotency::{Fingerprint, RecordKey, Terms};
use admit::{
    AdmissionError, AdmissionStore, Charge, IdempotencyStore, Now, Unavailable, Verdict, one_by_one,
};

use super::{Leased, Lessor};
use crate::{Leader, Leadership};

macro_rules! via {
    ($leased:expr, $method:ident($($argument:expr),*)) => {
        $leased.store.$method($($argument),*).await
    };
}

admit::pass_records_on!([S: IdempotencyStore] Leased<S>, via);

impl<S: AdmissionStore + Lessor> AdmissionStore for Leased<S> {
    /// In one step of the store where no charge is leased. Slices are spent in memory, and so apart from the records.
    async fn admit(
        &self,
        charges: &[Charge],
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Verdict, AdmissionError> {
        match self.is_leased(charges) {
            true => one_by_one(self, charges, key, fingerprint, terms, now).await,
            false => self.store.admit(charges, key, fingerprint, terms, now).await,
        }
    }

    fn admits_in_one_step(&self, charges: &[Charge]) -> bool {
        !self.is_leased(charges) && self.store.admits_in_one_step(charges)
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
