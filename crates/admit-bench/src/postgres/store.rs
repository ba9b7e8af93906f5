//! Admit's store on PostgreSQL, with its default settings.

use std::sync::atomic::{AtomicU64, Ordering};

use admit::idempotency::{Fingerprint, RecordKey, Terms};
use admit::{AdmissionStore, Budget, BudgetStore, Charge, Key, Now, Verdict, one_by_one};
use admit_store::postgres::{PostgresConfig, PostgresStore};
use anyhow::Result;

use crate::load::limiter::{Limiter, SCOPE, rules};

pub(crate) async fn store(url: &str) -> Result<Store<PostgresStore>> {
    Ok(Store(PostgresStore::connect(PostgresConfig::new(url), rules()?).await?))
}

/// A store of Admit's.
#[derive(Clone)]
pub(crate) struct Store<S>(pub(crate) S);

impl<S: BudgetStore> Limiter for Store<S> {
    async fn take(&self, key: Key, budget: Budget) -> Result<bool> {
        let charge = Charge::one(SCOPE, key, budget);
        Ok(self.0.take(std::slice::from_ref(&charge), Now::Store).await?.is_granted())
    }
}

/// A store of Admit's that admits requests which are to run once, each with an idempotency key of its own.
#[derive(Clone)]
pub(crate) struct Admitting<S> {
    pub(crate) store: S,
    /// Whether look, take and claim are one call.
    pub(crate) in_one_step: bool,
}

impl<S: AdmissionStore> Limiter for Admitting<S> {
    async fn take(&self, key: Key, budget: Budget) -> Result<bool> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
        let (record, payload, terms) =
            (RecordKey::new("bench", "POST", "/", &name), Fingerprint::of(""), Terms::default());
        let charge = Charge::one(SCOPE, key, budget);
        let charges = std::slice::from_ref(&charge);
        let verdict = match self.in_one_step {
            true => self.store.admit(charges, &record, &payload, &terms, Now::Store).await?,
            false => one_by_one(&self.store, charges, &record, &payload, &terms, Now::Store).await?,
        };
        Ok(matches!(verdict, Verdict::Run(..)))
    }
}
