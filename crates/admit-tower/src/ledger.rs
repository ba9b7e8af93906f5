//! What a keyed request has paid so far. A replay pays less than a run, and which of the two a request is may turn out
//! only after it paid.

use std::sync::{Arc, OnceLock};

use admit::{Grant, Refusal, TakeError, Unavailable};
use http::HeaderMap;
use http::request::Parts;
use tokio::runtime::Handle;
use tracing::Instrument;

use crate::purse::{OneStore, Purse};
use crate::{Admission, Admitted, CorrelationId, Problem, Quota};

/// What one request has paid: two shares, one that replays pay too, and one that only runs pay. It goes with the request, into
/// the task of its run too. Dropped, it gives back what was paid for nothing: its client has gone before it ran.
#[derive(Default)]
pub(crate) struct Ledger {
    purse: Option<Purse>,
    /// Found when it is first asked for.
    one_store: OnceLock<Option<Arc<dyn OneStore>>>,
    run: Share,
    replay: Share,
}

/// What a run or a replay costs, and the payment of it.
#[derive(Default)]
struct Share {
    quotas: Vec<Quota>,
    paid: Option<Admitted>,
    /// What was paid for has begun.
    is_final: bool,
}

impl Share {
    fn due(&self) -> &[Quota] {
        if self.paid.is_some() { &[] } else { &self.quotas }
    }
}

impl Ledger {
    /// The ledger of a request that has paid nothing. Without budgets everything is free.
    pub(crate) fn new(purse: Option<Purse>, request: &Parts) -> Self {
        let quotas = purse.as_ref().map(|purse| purse.budgets.quotas(request)).unwrap_or_default();
        let (replay, run) = quotas.into_iter().partition(|quota| quota.spent_by_replays);
        let unpaid = |quotas| Share { quotas, ..Share::default() };
        Self { purse, one_store: OnceLock::new(), run: unpaid(run), replay: unpaid(replay) }
    }

    /// Whether neither a run nor a replay costs anything.
    pub(crate) fn is_free(&self) -> bool {
        self.run.quotas.is_empty() && self.replay.quotas.is_empty()
    }

    /// Whether what a run costs is paid.
    pub(crate) fn covers_run(&self) -> bool {
        self.run.paid.is_some()
    }

    /// Whether one step finds out whether the key is free, takes what a run costs and claims it: because all of it is in one
    /// store, or because there is nothing to take.
    pub(crate) fn is_one_step(&self) -> bool {
        self.is_free() || self.one_store().is_some()
    }

    fn one_store(&self) -> Option<&Arc<dyn OneStore>> {
        let quotas = || self.run.quotas.iter().chain(&self.replay.quotas);
        let find = || self.purse.as_ref()?.one_store(quotas()).cloned();
        self.one_store.get_or_init(find).as_ref()
    }

    /// Who takes what a run costs together with its claim; nobody if it has to be paid before, or is, or is nothing.
    pub(crate) fn pays_with_claim(&self) -> Option<&Arc<dyn OneStore>> {
        let is_due = [&self.run, &self.replay].into_iter().any(|share| !share.due().is_empty());
        if is_due && !self.covers_run() { self.one_store() } else { None }
    }

    /// What a run still has to pay.
    pub(crate) fn due_for_run(&self) -> Vec<Quota> {
        [self.run.due(), self.replay.due()].concat()
    }

    /// Whether the request may run without having paid that, if it cannot be evaluated.
    pub(crate) fn may_go_without(&self) -> bool {
        Quota::all_fail_open(self.run.due()) && Quota::all_fail_open(self.replay.due())
    }

    /// What a run had to pay was granted together with its claim.
    pub(crate) fn run_was_granted(&mut self, grant: Grant) {
        if let Some(purse) = &self.purse {
            self.run_is_paid(purse.budgets.granted(self.due_for_run(), grant));
        }
    }

    /// It could not be evaluated, and the request runs without having paid it.
    pub(crate) fn run_goes_without(&mut self, id: &CorrelationId, cause: &Unavailable) {
        if let Some(purse) = &self.purse {
            self.run_is_paid(purse.budgets.failed_open(id, &self.due_for_run(), cause));
        }
    }

    /// Why it was not paid together with a claim, and the request does not run. Nothing stays paid.
    pub(crate) async fn run_is_not_paid(
        &mut self,
        request: &Parts,
        why: Result<Refusal, TakeError>,
    ) -> Option<Box<Problem>> {
        let problem = self.purse.as_ref().map(|purse| purse.budgets.told(request, self.due_for_run(), why));
        self.give_all_back().await;
        problem
    }

    fn run_is_paid(&mut self, mut admitted: Admitted) {
        let replay = admitted.split_off(self.run.due().len());
        self.run.paid.get_or_insert(admitted);
        self.replay.paid.get_or_insert(replay);
    }

    /// Pays what a run costs, in one take. If that is refused, nothing stays paid.
    pub(crate) async fn pay_for_run(&mut self, request: &Parts) -> Result<(), Box<Problem>> {
        match self.admit(request, self.due_for_run()).await {
            Ok(admitted) => {
                self.run_is_paid(admitted);
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

    /// Says that what was paid so far was for something: the request runs, or asked for what another runs, or has its answer.
    pub(crate) fn settle(&mut self) {
        for share in [&mut self.run, &mut self.replay] {
            share.is_final = share.paid.is_some();
        }
    }

    /// Takes everything back: the request did not run, and was not refused either.
    pub(crate) async fn give_all_back(&mut self) {
        let paid = [self.run.paid.take(), self.replay.paid.take()];
        self.give_back(paid.into_iter().flatten().reduce(Admitted::and)).await;
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
        let Some(purse) = &self.purse else { return Ok(Admitted::default()) };
        match purse.budgets.admit(request, quotas).await {
            Admission::Admitted(admitted) => Ok(admitted),
            Admission::Rejected(problem) => Err(problem),
        }
    }

    async fn give_back(&self, paid: Option<Admitted>) {
        if let Some(refund) = self.refund(paid) {
            let _ = tokio::spawn(refund).await; // A task, so that it is done though the request be dropped meanwhile.
        }
    }

    fn refund(&self, paid: Option<Admitted>) -> Option<impl Future<Output = ()> + Send + use<>> {
        let (purse, paid) = (self.purse.clone()?, paid.filter(|paid| !paid.is_free())?);
        Some(async move { purse.budgets.give_back(paid).await }.in_current_span())
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let shares = [&mut self.run, &mut self.replay].into_iter().filter(|share| !share.is_final);
        let paid = shares.filter_map(|share| share.paid.take()).reduce(Admitted::and);
        // Without a runtime the process is about to end.
        if let (Some(refund), Ok(runtime)) = (self.refund(paid), Handle::try_current()) {
            runtime.spawn(refund);
        }
    }
}
