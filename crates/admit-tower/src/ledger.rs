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

/// What one request has paid: two shares, one that replays pay too, and one that only runs pay.
pub(crate) struct Ledger<'a> {
    purse: Option<&'a dyn Purse>,
    run: Share,
    replay: Share,
}

/// What a run or a replay costs, and the payment of it.
struct Share {
    quotas: Vec<Quota>,
    paid: Option<Admitted>,
}

impl Share {
    fn due(&self) -> &[Quota] {
        if self.paid.is_some() { &[] } else { &self.quotas }
    }
}

impl<'a> Ledger<'a> {
    /// The ledger of a request that has paid nothing. Without budgets everything is free.
    pub(crate) fn new(purse: Option<&'a dyn Purse>, request: &Parts) -> Self {
        let quotas = purse.map(|purse| purse.quotas(request)).unwrap_or_default();
        let (replay, run) = quotas.into_iter().partition(|quota| quota.spent_by_replays);
        let unpaid = |quotas| Share { quotas, paid: None };
        Self { purse, run: unpaid(run), replay: unpaid(replay) }
    }

    /// Whether neither a run nor a replay costs anything.
    pub(crate) fn is_free(&self) -> bool {
        self.run.quotas.is_empty() && self.replay.quotas.is_empty()
    }

    /// Whether what a run costs is paid.
    pub(crate) fn covers_run(&self) -> bool {
        self.run.paid.is_some()
    }

    /// Pays what a run costs, in one take. If that is refused, nothing stays paid.
    pub(crate) async fn pay_for_run(&mut self, request: &Parts) -> Result<(), Box<Problem>> {
        let due = [self.run.due(), self.replay.due()].concat();
        match self.admit(request, due).await {
            Ok(mut admitted) => {
                let replay = admitted.split_off(self.run.due().len());
                self.run.paid.get_or_insert(admitted);
                self.replay.paid.get_or_insert(replay);
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
        let run = self.run.paid.take();
        self.give_back(run).await;
        let admitted = self.admit(request, self.replay.due().to_vec()).await?;
        self.replay.paid.get_or_insert(admitted);
        Ok(())
    }

    /// Takes everything back: the request did not run, and was not refused either.
    pub(crate) async fn give_all_back(&mut self) {
        let (run, replay) = (self.run.paid.take(), self.replay.paid.take());
        self.give_back(run).await;
        self.give_back(replay).await;
    }

    /// Tells in a response what the payments left, as if they had been one.
    pub(crate) fn mark(&self, response: &mut HeaderMap) {
        if let Some(paid) = self.paid() {
            paid.mark(response);
        }
    }

    /// The payments, as if they had been one.
    pub(crate) fn paid(&self) -> Option<Admitted> {
        [&self.run.paid, &self.replay.paid].into_iter().flatten().cloned().reduce(Admitted::and)
    }

    async fn admit(&self, request: &Parts, quotas: Vec<Quota>) -> Result<Admitted, Box<Problem>> {
        let Some(purse) = self.purse else { return Ok(Admitted::default()) };
        match purse.admit(request, quotas).await {
            Admission::Admitted(admitted) => Ok(admitted),
            Admission::Rejected(problem) => Err(problem),
        }
    }

    async fn give_back(&self, admitted: Option<Admitted>) {
        if let (Some(purse), Some(admitted)) = (self.purse, admitted) {
            purse.give_back(admitted).await;
        }
    }
}
