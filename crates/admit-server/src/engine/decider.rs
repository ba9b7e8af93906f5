//! Decides on charges, for every front.

use std::sync::Arc;

use admit_store::leases::Leased;
use admit_tower::{Admitted, Limiter, Quota, ReadAhead, Rejected};
use http::request::Parts;

use super::Charges;
use super::shadows::{Debited, Shadows};
use crate::measured::Measured;
use crate::metrics::Metrics;
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
    /// Where bodies of requests are read that nobody has let run yet.
    pub read_ahead: ReadAhead,
    /// For budgets that hold.
    pub limiter: Limiter<Store>,
    /// For budgets in shadow mode, each of which is charged apart.
    shadows: Shadows,
}

impl Decider {
    /// Decides by this policy on this store, and counts what it decides.
    pub fn new(policy: Arc<Policy>, store: Store, metrics: Metrics) -> Self {
        let limiter = Limiter::new(store.clone()).dialect(policy.server.dialect).observer(metrics.clone());
        let shadows = Shadows::new(store.clone(), metrics);
        Self { policy, store, read_ahead: ReadAhead::default(), limiter, shadows }
    }

    /// Charges each shadow, and waits for none. What they decide is told to observers alone.
    pub async fn charge_shadows(&self, request: &Parts, shadows: Vec<Quota>) -> Debited {
        self.shadows.charge(request, shadows).await
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
