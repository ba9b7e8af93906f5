//! The ingest limiter on a store of buckets.

use admit::{BudgetStore, Charge, Cost, Decision, Key, Refusal, Scope, TimeSource};

use crate::fleet::{DomainId, NodeId};
use crate::metrics::Metrics;
use crate::observability::{IngestLimitError, IngestLimiter, IngestRefused};
use crate::settings::IngestBudgets;

/// A node's bytes.
pub const INGEST_NODE: Scope = Scope::from_static("ingest_node");
/// The bytes of all nodes of a domain.
pub const INGEST_DOMAIN: Scope = Scope::from_static("ingest_domain");

/// The ingest limiter on a store.
#[derive(Clone, Debug)]
pub struct StoreIngestLimiter<S> {
    store: S,
    time: TimeSource,
    budgets: IngestBudgets,
    metrics: Metrics,
}

impl<S: BudgetStore> StoreIngestLimiter<S> {
    /// A limiter that holds every node and every domain to the same budgets.
    pub fn new(store: S, time: TimeSource, budgets: IngestBudgets, metrics: Metrics) -> Self {
        Self { store, time, budgets, metrics }
    }
}

impl<S: BudgetStore> IngestLimiter for StoreIngestLimiter<S> {
    async fn admit(&self, node: NodeId, domain: DomainId, wire_bytes: u64) -> Result<(), IngestLimitError> {
        let charge = |scope, id: uuid::Uuid, budget| {
            let key = Key::from_bytes(id.into_bytes());
            Charge { scope, key, cost: Cost::bytes(wire_bytes), budget }
        };
        let charges = [
            charge(INGEST_NODE, node.uuid(), self.budgets.node),
            charge(INGEST_DOMAIN, domain.uuid(), self.budgets.domain),
        ];
        let taken = self.store.take(&charges, self.time.now()).await;
        self.metrics.count_take(&charges, &taken);
        match taken.map_err(|error| IngestLimitError::Unavailable(error.into()))? {
            Decision::Granted(_) => Ok(()),
            Decision::Refused(refusal) => Err(refused(&refusal).into()),
        }
    }
}

fn refused(refusal: &Refusal) -> IngestRefused {
    let retry_after_seconds = refusal.retry_after_seconds();
    match refusal.longest() {
        (0, _) => IngestRefused::PerNode { retry_after_seconds },
        _ => IngestRefused::PerDomain { retry_after_seconds },
    }
}
