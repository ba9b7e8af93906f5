//! Decides on charges, for every front.

use std::sync::Arc;

use admit_store::leases::Leased;
use admit_tower::{Admitted, Limiter, Quota, Rejected};
use http::request::Parts;

use super::Charges;
use crate::measured::Measured;
use crate::metrics::{Metrics, ShadowMetrics};
use crate::policy::Policy;

/// The store of all fronts: what is not leased, and each slice, is a call that is measured.
pub type Store = Leased<Measured>;

/// The policy's budgets on a store. Clones share both.
#[derive(Clone, Debug)]
pub struct Decider {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Where buckets and records are.
    pub store: Store,
    /// For budgets that hold.
    pub limiter: Limiter<Store>,
    /// For budgets in shadow mode, each of which is charged apart.
    shadows: Limiter<Store>,
}

impl Decider {
    /// Decides by this policy on this store, and counts what it decides.
    pub fn new(policy: Arc<Policy>, store: Store, metrics: Metrics) -> Self {
        let limiter = Limiter::new(store.clone()).dialect(policy.server.dialect).observer(metrics.clone());
        let shadows = Limiter::new(store.clone()).observer(ShadowMetrics(metrics));
        Self { policy, store, limiter, shadows }
    }

    /// Charges each shadow. What it decides is told to observers alone; what was debited is returned.
    pub async fn charge_shadows(&self, request: &Parts, shadows: Vec<Quota>) -> Vec<Admitted> {
        let mut debited = Vec::new();
        for shadow in shadows {
            debited.extend(self.shadows.decide(request, vec![shadow]).await);
        }
        debited
    }

    /// Charges the shadows, and the rest all or nothing.
    ///
    /// # Errors
    /// [`Rejected`] if the request may not run.
    pub async fn decide(&self, request: &Parts, charges: Charges) -> Result<Admitted, Box<Rejected>> {
        self.charge_shadows(request, charges.shadows).await;
        self.limiter.decide(request, charges.quotas).await
    }
}
