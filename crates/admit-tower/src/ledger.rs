//! What a keyed request has paid so far. A replay pays less than a run, and which of the two a request is may turn out
//! only after it paid.

use std::future::Future;
use std::pin::Pin;

use admit::BudgetStore;
use http::HeaderMap;
use http::request::Parts;

use crate::{Admission, Admitted, BudgetLayer, BudgetPolicy, Problem, Quota};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The budgets of a request, whatever their store and policy.
pub(crate) trait Purse: Send + Sync {
    fn quotas(&self, request: &Parts) -> Vec<Quota>;
    fn admit<'a>(&'a self, request: &'a Parts, quotas: Vec<Quota>) -> BoxFuture<'a, Admission>;
    fn give_back(&self, admitted: Admitted) -> BoxFuture<'_, ()>;
}

impl<S: BudgetStore, P: BudgetPolicy> Purse for BudgetLayer<S, P> {
    fn quotas(&self, request: &Parts) -> Vec<Quota> {
        self.policy().quotas(request)
    }

    fn admit<'a>(&'a self, request: &'a Parts, quotas: Vec<Quota>) -> BoxFuture<'a, Admission> {
        Box::pin(self.limiter().admit(request, quotas))
    }

    fn give_back(&self, admitted: Admitted) -> BoxFuture<'_, ()> {
        Box::pin(self.limiter().give_back(admitted))
    }
}

/// What one request has paid.
pub(crate) struct Ledger<'a> {
    purse: Option<&'a dyn Purse>,
    for_replays: Vec<Quota>,
    for_runs: Vec<Quota>,
    paid_for_replay: Option<Admitted>,
    paid_for_run: Option<Admitted>,
    fields: HeaderMap,
}

impl<'a> Ledger<'a> {
    /// The ledger of a request that has paid nothing. Without budgets everything is free.
    pub(crate) fn new(purse: Option<&'a dyn Purse>, request: &Parts) -> Self {
        let quotas = purse.map(|purse| purse.quotas(request)).unwrap_or_default();
        let (for_replays, for_runs) = quotas.into_iter().partition(|quota| quota.spent_by_replays);
        Self {
            purse,
            for_replays,
            for_runs,
            paid_for_replay: None,
            paid_for_run: None,
            fields: HeaderMap::new(),
        }
    }

    /// Pays what a run costs. If that is refused, nothing stays paid.
    pub(crate) async fn pay_for_run(&mut self, request: &Parts) -> Result<(), Box<Problem>> {
        if self.paid_for_run.is_some() {
            return Ok(());
        }
        let paid_before = self.paid_for_replay.is_some();
        let quotas = match paid_before {
            true => self.for_runs.clone(),
            false => self.for_runs.iter().chain(&self.for_replays).cloned().collect(),
        };
        match self.admit(request, quotas).await {
            Ok(mut admitted) => {
                if !paid_before {
                    self.paid_for_replay = Some(admitted.split_off(self.for_runs.len()));
                }
                self.paid_for_run = Some(admitted);
                Ok(())
            }
            Err(problem) => {
                self.give_all_back().await;
                Err(problem)
            }
        }
    }

    /// Pays what a replay costs, and takes back what a run costs beyond that.
    pub(crate) async fn pay_for_replay(&mut self, request: &Parts) -> Result<(), Box<Problem>> {
        let run = self.paid_for_run.take();
        self.give_back(run).await;
        if self.paid_for_replay.is_none() {
            self.paid_for_replay = Some(self.admit(request, self.for_replays.clone()).await?);
        }
        Ok(())
    }

    /// Takes everything back: the request did not run, and was not refused either.
    pub(crate) async fn give_all_back(&mut self) {
        let (run, replay) = (self.paid_for_run.take(), self.paid_for_replay.take());
        self.fields.clear();
        self.give_back(run).await;
        self.give_back(replay).await;
    }

    /// Adds the fields of the last payment to a response.
    pub(crate) fn mark(&self, response: &mut HeaderMap) {
        crate::fields::merge(response, &self.fields);
    }

    async fn admit(&mut self, request: &Parts, quotas: Vec<Quota>) -> Result<Admitted, Box<Problem>> {
        let Some(purse) = self.purse else { return Ok(Admitted::default()) };
        match purse.admit(request, quotas).await {
            Admission::Admitted(admitted) => {
                self.fields = admitted.fields().clone();
                Ok(admitted)
            }
            Admission::Rejected(problem) => Err(problem),
        }
    }

    async fn give_back(&self, admitted: Option<Admitted>) {
        if let (Some(purse), Some(admitted)) = (self.purse, admitted) {
            purse.give_back(admitted).await;
        }
    }
}
