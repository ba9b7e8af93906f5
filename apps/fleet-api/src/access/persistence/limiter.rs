//! The issuance limiter on a store of buckets.

use std::collections::HashMap;
use std::sync::Arc;

use admit::{Budget, BudgetStore, Causes, Charge, Decision, Key, Scope, TimeSource};

use crate::access::{IssuanceLimitError, IssuanceLimiter, IssuanceRefused};
use crate::fleet::DomainId;
use crate::metrics::Metrics;

/// The issuances of a domain.
pub const ACCESS_ISSUANCE_DOMAIN: Scope = Scope::from_static("access_issuance_domain");

/// What each domain's issuance is held to.
#[derive(Clone, Debug)]
pub struct IssuanceBudgets {
    /// Of a domain without a policy of its own.
    pub default: Budget,
    /// Of the others.
    pub by_domain: HashMap<DomainId, Budget>,
}

/// The issuance limiter on a store.
#[derive(Clone, Debug)]
pub struct StoreIssuanceLimiter<S> {
    store: S,
    time: TimeSource,
    budgets: Arc<IssuanceBudgets>,
    metrics: Metrics,
}

impl<S: BudgetStore> StoreIssuanceLimiter<S> {
    /// A limiter that sizes each domain's bucket by its own policy.
    pub fn new(store: S, time: TimeSource, budgets: IssuanceBudgets, metrics: Metrics) -> Self {
        Self { store, time, budgets: Arc::new(budgets), metrics }
    }

    fn charge(&self, domain: DomainId) -> Charge {
        let budget = self.budgets.by_domain.get(&domain).unwrap_or(&self.budgets.default);
        Charge::one(ACCESS_ISSUANCE_DOMAIN, Key::from_bytes(domain.uuid().into_bytes()), *budget)
    }
}

impl<S: BudgetStore> IssuanceLimiter for StoreIssuanceLimiter<S> {
    async fn admit(&self, domain: DomainId) -> Result<(), IssuanceLimitError> {
        let charges = [self.charge(domain)];
        let taken = self.store.take(&charges, self.time.now()).await;
        self.metrics.count_take(&charges, &taken);
        match taken.map_err(|error| IssuanceLimitError::Unavailable(error.into()))? {
            Decision::Granted(_) => Ok(()),
            Decision::Refused(_) => Err(IssuanceRefused.into()),
        }
    }

    async fn give_back(&self, domain: DomainId) {
        if let Err(error) = self.store.refund(&[self.charge(domain)]).await {
            tracing::warn!(%domain, cause = %Causes(&error), "an issuance that did not take place stays spent");
        }
    }
}
