//! The budgets that keyed requests are held to, whatever their store and policy.

use std::pin::Pin;
use std::sync::Arc;

use admit::idempotency::Terms;
use admit::{
    AdmissionError, AdmissionStore, BudgetStore, Charge, Few, Grant, Refusal, TakeError, Unavailable, Verdict,
};
use http::request::Parts;

use crate::request_key::RequestKey;
use crate::{Admission, Admitted, BudgetLayer, BudgetPolicy, CorrelationId, Problem, Quota};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Budgets, and the store of the records with them, if both are in one. Clones share them.
#[derive(Clone)]
pub(crate) struct Purse {
    pub(crate) budgets: Arc<dyn Budgeted>,
    one_store: Option<Arc<dyn OneStore>>,
}

impl Purse {
    pub(crate) fn new(budgets: BudgetLayer<impl BudgetStore, impl BudgetPolicy>) -> Self {
        Self { budgets: Arc::new(budgets), one_store: None }
    }

    pub(crate) fn in_store(budgets: BudgetLayer<impl AdmissionStore, impl BudgetPolicy>) -> Self {
        let budgets = Arc::new(budgets);
        Self { budgets: budgets.clone(), one_store: Some(budgets) }
    }

    /// The store that takes these and claims a key in one step, if there is one.
    pub(crate) fn one_store<'q>(
        &self,
        quotas: impl Iterator<Item = &'q Quota>,
    ) -> Option<&Arc<dyn OneStore>> {
        let charges: Few<Charge> = quotas.map(|quota| quota.charge.clone()).collect();
        self.one_store.as_ref().filter(|store| store.is_one_step(&charges))
    }
}

/// A [`BudgetLayer`].
pub(crate) trait Budgeted: Send + Sync {
    fn quotas(&self, request: &Parts) -> Vec<Quota>;
    fn admit<'a>(&'a self, request: &'a Parts, quotas: Vec<Quota>) -> BoxFuture<'a, Admission>;
    fn give_back(&self, admitted: Admitted) -> BoxFuture<'_, ()>;
    /// Tells that the quotas were granted.
    fn granted(&self, quotas: Vec<Quota>, grant: Grant) -> Admitted;
    /// Tells that the request runs without having paid the quotas, as they could not be evaluated.
    fn failed_open(&self, id: &CorrelationId, quotas: &[Quota], cause: &Unavailable) -> Admitted;
    /// Tells why it does not run.
    fn told(&self, request: &Parts, quotas: Vec<Quota>, why: Result<Refusal, TakeError>) -> Box<Problem>;
}

impl<S: BudgetStore, P: BudgetPolicy> Budgeted for BudgetLayer<S, P> {
    fn quotas(&self, request: &Parts) -> Vec<Quota> {
        self.policy().quotas(request)
    }

    fn admit<'a>(&'a self, request: &'a Parts, quotas: Vec<Quota>) -> BoxFuture<'a, Admission> {
        Box::pin(self.limiter().admit(request, quotas))
    }

    fn give_back(&self, admitted: Admitted) -> BoxFuture<'_, ()> {
        Box::pin(self.limiter().give_back(admitted))
    }

    fn granted(&self, quotas: Vec<Quota>, grant: Grant) -> Admitted {
        self.limiter().granted(quotas, grant)
    }

    fn failed_open(&self, id: &CorrelationId, quotas: &[Quota], cause: &Unavailable) -> Admitted {
        self.limiter().failed_open(id, quotas, cause)
    }

    fn told(&self, request: &Parts, quotas: Vec<Quota>, why: Result<Refusal, TakeError>) -> Box<Problem> {
        self.limiter().told(request, quotas, why)
    }
}

/// A [`BudgetLayer`] on the store of the records.
pub(crate) trait OneStore: Send + Sync {
    fn is_one_step(&self, charges: &[Charge]) -> bool;
    /// Takes the quotas and claims the key.
    fn admit<'a>(
        &'a self,
        quotas: &'a [Quota],
        key: &'a RequestKey,
        terms: &'a Terms,
    ) -> BoxFuture<'a, Result<Verdict, AdmissionError>>;
}

impl<S: AdmissionStore, P: BudgetPolicy> OneStore for BudgetLayer<S, P> {
    fn is_one_step(&self, charges: &[Charge]) -> bool {
        self.limiter().admits_in_one_step(charges)
    }

    fn admit<'a>(
        &'a self,
        quotas: &'a [Quota],
        key: &'a RequestKey,
        terms: &'a Terms,
    ) -> BoxFuture<'a, Result<Verdict, AdmissionError>> {
        Box::pin(self.limiter().admit_once(quotas, key, terms))
    }
}
