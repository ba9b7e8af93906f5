//! Binds the read limiter to a store of buckets.

use admit::{BudgetStore, Charge, Decision, Key, Refusal, Scope, TimeSource};

use super::{ReadLimitError, ReadLimiter, ReadRefused};
use crate::fleet::{DomainId, NodeId};
use crate::metrics::Metrics;
use crate::settings::ReadBudgets;

/// A node's reads.
pub const SECRET_READ_NODE: Scope = Scope::from_static("secret_read_node");
/// The reads of all nodes of a domain.
pub const SECRET_READ_DOMAIN: Scope = Scope::from_static("secret_read_domain");

/// The read limiter on a store.
#[derive(Clone, Debug)]
pub struct StoreReadLimiter<S> {
    store: S,
    time: TimeSource,
    budgets: ReadBudgets,
    metrics: Metrics,
}

impl<S: BudgetStore> StoreReadLimiter<S> {
    /// A limiter that holds every node and every domain to the same budgets.
    pub fn new(store: S, time: TimeSource, budgets: ReadBudgets, metrics: Metrics) -> Self {
        Self { store, time, budgets, metrics }
    }
}

impl<S: BudgetStore> ReadLimiter for StoreReadLimiter<S> {
    async fn admit(&self, node: NodeId, domain: DomainId) -> Result<(), ReadLimitError> {
        let charges = [
            Charge::one(SECRET_READ_NODE, Key::from_bytes(node.uuid().into_bytes()), self.budgets.node),
            Charge::one(SECRET_READ_DOMAIN, Key::from_bytes(domain.uuid().into_bytes()), self.budgets.domain),
        ];
        let taken = self.store.take(&charges, self.time.now()).await;
        self.metrics.count_take(&charges, &taken);
        match taken.map_err(|error| ReadLimitError::Unavailable(error.into()))? {
            Decision::Granted(_) => Ok(()),
            Decision::Refused(refusal) => Err(refused(&refusal).into()),
        }
    }
}

fn refused(refusal: &Refusal) -> ReadRefused {
    let retry_after_seconds = refusal.retry_after_seconds();
    match refusal.longest() {
        (0, _) => ReadRefused::PerNode { retry_after_seconds },
        _ => ReadRefused::PerDomain { retry_after_seconds },
    }
}
