//! Admit's store on PostgreSQL, with its default settings.

use admit::{Budget, BudgetStore, Charge, Key, Now};
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
