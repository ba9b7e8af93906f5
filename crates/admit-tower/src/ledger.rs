//! What a keyed request has paid so far. A replay pays less than a run, and which of the two a request is may turn out
//! only after it paid.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use admit::idempotency::Terms;
use admit::{
    AdmissionError, AdmissionStore, BudgetStore, Charge, Few, Grant, Refusal, TakeError, Unavailable, Verdict,
};
use http::HeaderMap;
use http::request::Parts;
use tokio::runtime::Handle;
use tracing::Instrument;

use crate::request_key::RequestKey;
use crate::{Admission, Admitted, BudgetLayer, BudgetPolicy, CorrelationId, Problem, Quota};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The budgets of a request, whatever their store and policy.
pub(crate) trait Purse: Send + Sync {
    fn quotas(&self, request: &Parts) -> Vec<Quota>;
    fn admit<'a>(&'a self, request: &'a Parts, quotas: Vec<Quota>) -> BoxFuture<'a, Admission>;
    fn give_back(&self, admitted: Admitted) -> BoxFuture<'_, ()>;
    /// The same budgets with the records, if both are in one store, which takes these charges and claims a key in one step.
    fn one_store(self: Arc<Self>, charges: &[Charge]) -> Option<Arc<dyn OneStore>>;
}

/// The budgets of a request, whose key is claimed in the same step.
pub(crate) trait OneStore: Send + Sync {
    fn admit<'a>(
        &'a self,
        quotas: &'a [Quota],
        key: &'a RequestKey,
        terms: &'a Terms,
    ) -> BoxFuture<'a, Result<Verdict, AdmissionError>>;
    /// Tells that the quotas were granted.
    fn granted(&self, quotas: Vec<Quota>, grant: Grant) -> Admitted;
    /// Tells that the request runs without having paid the quotas, as they could not be evaluated.
    fn failed_open(&self, id: &CorrelationId, quotas: &[Quota], cause: &Unavailable) -> Admitted;
    /// Tells why it does not run.
    fn told(&self, request: &Parts, quotas: Vec<Quota>, why: Result<Refusal, TakeError>) -> Box<Problem>;
}

/// Budgets in the store of the records.
pub(crate) struct InStore<S, P>(pub(crate) BudgetLayer<S, P>);

impl<S: AdmissionStore, P: BudgetPolicy> OneStore for InStore<S, P> {
    fn admit<'a>(
        &'a self,
        quotas: &'a [Quota],
        key: &'a RequestKey,
        terms: &'a Terms,
    ) -> BoxFuture<'a, Result<Verdict, AdmissionError>> {
        Box::pin(self.0.limiter().admit_once(quotas, key, terms))
    }

    fn granted(&self, quotas: Vec<Quota>, grant: Grant) -> Admitted {
        self.0.limiter().granted(quotas, grant)
    }

    fn failed_open(&self, id: &CorrelationId, quotas: &[Quota], cause: &Unavailable) -> Admitted {
        self.0.limiter().failed_open(id, quotas, cause)
    }

    fn told(&self, request: &Parts, quotas: Vec<Quota>, why: Result<Refusal, TakeError>) -> Box<Problem> {
        self.0.limiter().told(request, quotas, why)
    }
}

impl<S: AdmissionStore, P: BudgetPolicy> Purse for InStore<S, P> {
    fn quotas(&self, request: &Parts) -> Vec<Quota> {
        self.0.quotas(request)
    }

    fn admit<'a>(&'a self, request: &'a Parts, quotas: Vec<Quota>) -> BoxFuture<'a, Admission> {
        Purse::admit(&self.0, request, quotas)
    }

    fn give_back(&self, admitted: Admitted) -> BoxFuture<'_, ()> {
        self.0.give_back(admitted)
    }

    fn one_store(self: Arc<Self>, charges: &[Charge]) -> Option<Arc<dyn OneStore>> {
        if self.0.limiter().admits_in_one_step(charges) { Some(self) } else { None }
    }
}

/// What a run still has to pay, together with its claim.
pub(crate) struct Bill {
    pub(crate) one_store: Arc<dyn OneStore>,
    pub(crate) quotas: Vec<Quota>,
}

impl Bill {
    /// Whether the request may run without having paid it, if its budgets cannot be evaluated.
    pub(crate) fn may_go_without(&self) -> bool {
        Quota::all_fail_open(&self.quotas)
    }
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

    fn one_store(self: Arc<Self>, _: &[Charge]) -> Option<Arc<dyn OneStore>> {
        None
    }
}

/// What one request has paid: two shares, one that replays pay too, and one that only runs pay. It goes with the request, into
/// the task of its run too. Dropped, it gives back what was paid for nothing: its client has gone before it ran.
#[derive(Default)]
pub(crate) struct Ledger {
    purse: Option<Arc<dyn Purse>>,
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
    pub(crate) fn new(purse: Option<Arc<dyn Purse>>, request: &Parts) -> Self {
        let quotas = purse.as_ref().map(|purse| purse.quotas(request)).unwrap_or_default();
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
        let find = || {
            let quotas = self.run.quotas.iter().chain(&self.replay.quotas);
            let charges: Few<Charge> = quotas.map(|quota| quota.charge.clone()).collect();
            self.purse.clone()?.one_store(&charges)
        };
        self.one_store.get_or_init(find).as_ref()
    }

    /// Whether what a run costs is paid together with its claim; not if it has to be paid before, or is, or is nothing.
    pub(crate) fn pays_with_claim(&self) -> bool {
        let is_due = [&self.run, &self.replay].into_iter().any(|share| !share.due().is_empty());
        is_due && !self.covers_run() && self.one_store().is_some()
    }

    /// What is to be paid so.
    pub(crate) fn bill(&self) -> Option<Bill> {
        let one_store = self.one_store().filter(|_| self.pays_with_claim())?;
        Some(Bill { one_store: Arc::clone(one_store), quotas: self.due_for_run() })
    }

    fn due_for_run(&self) -> Vec<Quota> {
        [self.run.due(), self.replay.due()].concat()
    }

    /// Takes down that what a run had to pay is paid.
    pub(crate) fn run_is_paid(&mut self, mut admitted: Admitted) {
        let replay = admitted.split_off(self.run.due().len());
        self.run.paid.get_or_insert(admitted);
        self.replay.paid.get_or_insert(replay);
    }

    /// Why a [bill](Self::bill) did not lead to a run. Nothing stays paid.
    pub(crate) async fn run_is_not_paid(
        &mut self,
        request: &Parts,
        Bill { one_store, quotas }: Bill,
        why: Result<Refusal, TakeError>,
    ) -> Box<Problem> {
        let problem = one_store.told(request, quotas, why);
        self.give_all_back().await;
        problem
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
        match purse.admit(request, quotas).await {
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
        Some(async move { purse.give_back(paid).await }.in_current_span())
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
