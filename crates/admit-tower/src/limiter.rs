//! Decides whether a request fits its quotas, and says so in HTTP.

use std::future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use admit::idempotency::Terms;
use admit::{
    AdmissionError, AdmissionStore, BudgetStore, Causes, Charge, Decision, Few, Grant, Refusal, TakeError,
    TimeSource, Unavailable, Verdict,
};
use http::request::Parts;
use tracing::{debug, error, warn};

use crate::fields::Dialect;
use crate::observe::{Event, Observer, Observers};
use crate::rejection::{Render, Renders};
use crate::request_key::RequestKey;
use crate::{Admitted, CorrelationId, Problem, Quota, Refused, Rejected, Rejection};

/// How long a store may take to decide before it counts as unavailable.
const DEFAULT_TIME_LIMIT: Duration = Duration::from_secs(5);

/// A store of budgets, and how its decisions are told. Clones share it: each request has one.
///
/// [`BudgetLayer`](crate::BudgetLayer) asks it for each request; a handler that knows its cost only after a look at the
/// request asks it directly.
#[derive(Clone, Debug)]
pub struct Limiter<S>(Arc<Settings<S>>);

#[derive(Clone, Debug)]
struct Settings<S> {
    store: S,
    time: TimeSource,
    dialect: Dialect,
    time_limit: Duration,
    renders: Renders,
    observers: Observers,
}

/// What a limiter says to a request.
#[derive(Debug)]
#[must_use = "a request may run only if it was admitted"]
pub enum Admission {
    /// The request may run. Its response gets these fields.
    Admitted(Admitted),
    /// The request may not run; the problem is the answer, with its fields.
    Rejected(Box<Problem>),
}

impl<S: BudgetStore> Limiter<S> {
    /// A limiter on this store, with the store's own clock and the fields of [`Dialect::Draft11`].
    pub fn new(store: S) -> Self {
        Self(Arc::new(Settings {
            store,
            time: TimeSource::default(),
            dialect: Dialect::default(),
            time_limit: DEFAULT_TIME_LIMIT,
            renders: Renders::default(),
            observers: Observers::default(),
        }))
    }

    fn set(&mut self) -> &mut Settings<S> {
        Arc::make_mut(&mut self.0)
    }

    /// Sets where `now` comes from.
    #[must_use]
    pub fn time(mut self, time: TimeSource) -> Self {
        self.set().time = time;
        self
    }

    /// Sets the form in which clients are told how they stand.
    #[must_use]
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.set().dialect = dialect;
        self
    }

    /// Sets how long a store may take to decide before it counts as unavailable; a take that was under way then may
    /// still debit, unless its store gives that back. Default 5 s: past it most callers have given up.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.set().time_limit = limit;
        self
    }

    /// Sets how rejections read.
    #[must_use]
    pub fn render(mut self, render: impl Render) -> Self {
        self.set().renders = Renders::new(render);
        self
    }

    /// Sets who is told of every decision.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.set().observers = Observers::new(observer);
        self
    }

    /// The same limiter on another handle.
    pub(crate) fn over(mut self, store: S) -> Self {
        self.set().store = store;
        self
    }

    /// Charges all quotas, or none. Without quotas the request is admitted without a question.
    pub async fn admit(&self, request: &Parts, quotas: Vec<Quota>) -> Admission {
        let decided = self.decide(request, quotas).await;
        self.admission(request, decided)
    }

    fn admission(&self, request: &Parts, decided: Result<Admitted, Box<Rejected>>) -> Admission {
        match decided {
            Ok(admitted) => Admission::Admitted(admitted),
            Err(rejected) => Admission::Rejected(Box::new(self.problem(request, *rejected))),
        }
    }

    /// [`Limiter::admit`], for a front that tells a rejection in a form of its own.
    ///
    /// # Errors
    /// [`Rejected`] if the request may not run.
    pub async fn decide(&self, request: &Parts, quotas: Vec<Quota>) -> Result<Admitted, Box<Rejected>> {
        if quotas.is_empty() {
            return Ok(self.uncharged());
        }
        let charges = charges(&quotas);
        let take = self.0.store.take(&charges, self.0.time.now());
        let decision = self.in_time(take).await;
        self.decided(request, quotas, decision, &self.0.observers)
    }

    /// What [`Limiter::decide`] would decide, with the tokens that are there as what is left. Writes nothing, and tells no
    /// observer.
    ///
    /// # Errors
    /// As [`Limiter::decide`].
    pub async fn peek(&self, request: &Parts, quotas: Vec<Quota>) -> Result<Admitted, Box<Rejected>> {
        if quotas.is_empty() {
            return Ok(self.uncharged());
        }
        let charges = charges(&quotas);
        let peek = self.0.store.peek(&charges, self.0.time.now());
        let decision = self.in_time(peek).await;
        self.decided(request, quotas, decision, &Observers::default())
    }

    /// What the store answers, unless it takes too long. A store in memory answers at once, and no timer is made for it.
    async fn in_time<T, E: From<TakeError>>(
        &self,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mut asked = pin!(asked);
        if let Poll::Ready(answer) = future::poll_fn(|cx| Poll::Ready(asked.as_mut().poll(cx))).await {
            return answer;
        }
        let late = |elapsed| TakeError::from(Unavailable::timed_out("budget", elapsed)).into();
        tokio::time::timeout(self.0.time_limit, asked).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
    }

    /// Tells that the quotas were granted.
    pub(crate) fn granted(&self, quotas: Vec<Quota>, grant: Grant) -> Admitted {
        self.admitted(quotas, grant, &self.0.observers)
    }

    /// Tells that the quotas could not be evaluated, and that the request runs all the same.
    pub(crate) fn failed_open(&self, id: &CorrelationId, quotas: &[Quota], cause: &Unavailable) -> Admitted {
        self.uncharged_for(id, quotas, cause, &self.0.observers)
    }

    /// Tells why a request does not run that was to pay the quotas.
    pub(crate) fn told(
        &self,
        request: &Parts,
        quotas: Vec<Quota>,
        why: Result<Refusal, TakeError>,
    ) -> Box<Problem> {
        let rejected = match why {
            Ok(refusal) => self.refused(quotas, refusal, &self.0.observers),
            Err(error) => {
                tell(&self.0.observers, &quotas, Event::Unavailable);
                failed(request, &error)
            }
        };
        Box::new(self.problem(request, *rejected))
    }

    fn refused(&self, quotas: Vec<Quota>, refusal: Refusal, observers: &Observers) -> Box<Rejected> {
        let refused = Refused { quotas, refusal };
        for (quota, wait) in refused.violated() {
            debug!(scope = quota.name(), ?wait, "refused");
            observers.tell(Event::Refused(&quota.charge.scope));
        }
        let fields = self.0.dialect.refused(&refused);
        Box::new(Rejected { why: Rejection::Refused(refused), fields, id: None })
    }

    fn uncharged_for(
        &self,
        id: &CorrelationId,
        quotas: &[Quota],
        cause: &Unavailable,
        observers: &Observers,
    ) -> Admitted {
        warn!(correlation_id = %id, error = %Causes(cause), "budgets unavailable; the request runs uncharged");
        tell(observers, quotas, Event::FailedOpen);
        self.uncharged()
    }

    fn admitted(&self, quotas: Vec<Quota>, grant: Grant, observers: &Observers) -> Admitted {
        tell(observers, &quotas, Event::Granted);
        let debits = Arc::new(quotas.into_iter().zip(grant.left).collect());
        Admitted { dialect: self.0.dialect, debits }
    }

    fn decided(
        &self,
        request: &Parts,
        quotas: Vec<Quota>,
        decision: Result<Decision, TakeError>,
        observers: &Observers,
    ) -> Result<Admitted, Box<Rejected>> {
        let error = match decision {
            Ok(Decision::Granted(grant)) => return Ok(self.admitted(quotas, grant, observers)),
            Ok(Decision::Refused(refusal)) => return Err(self.refused(quotas, refusal, observers)),
            Err(error) => error,
        };
        if let TakeError::Unavailable(cause) = &error
            && Quota::all_fail_open(&quotas)
        {
            return Ok(self.uncharged_for(&CorrelationId::of(request), &quotas, cause, observers));
        }
        tell(observers, &quotas, Event::Unavailable);
        Err(failed(request, &error))
    }

    /// Gives back what a granted take debited, for a request that was admitted and then did not run: once for each take.
    ///
    /// # Errors
    /// [`Rejected`] if the store could not; nothing was given back then.
    pub async fn refund(&self, request: &Parts, quotas: &[Quota]) -> Result<(), Box<Rejected>> {
        let charges = charges(quotas);
        self.in_time(self.0.store.refund(&charges)).await.map_err(|error| failed(request, &error))
    }

    /// The problem that tells a rejection of this limiter in HTTP.
    pub fn problem(&self, request: &Parts, rejected: Rejected) -> Problem {
        rejected.problem(request, &self.0.renders)
    }

    fn uncharged(&self) -> Admitted {
        Admitted { dialect: self.0.dialect, ..Admitted::default() }
    }

    /// Gives back what an admission debited, for a request that did not run after all. If the store cannot, the tokens
    /// stay spent and the log says so.
    pub async fn give_back(&self, admitted: Admitted) {
        if admitted.debits.is_empty() {
            return;
        }
        let charges: Few<Charge> = admitted.debits.iter().map(|(quota, _)| quota.charge.clone()).collect();
        if let Err(cause) = self.in_time(self.0.store.refund(&charges)).await {
            warn!(error = %Causes(&cause), "a charge was not given back");
        }
    }
}

impl<S: AdmissionStore> Limiter<S> {
    /// Takes the quotas and claims a key.
    pub(crate) async fn admit_once(
        &self,
        quotas: &[Quota],
        key: &RequestKey,
        terms: &Terms,
    ) -> Result<Verdict, AdmissionError> {
        let charges = charges(quotas);
        let now = self.0.time.now();
        self.in_time(self.0.store.admit(&charges, &key.record, &key.fingerprint, terms, now)).await
    }

    /// Whether that is one step.
    pub(crate) fn admits_in_one_step(&self, charges: &[Charge]) -> bool {
        self.0.store.admits_in_one_step(charges)
    }
}

fn charges(quotas: &[Quota]) -> Few<Charge> {
    quotas.iter().map(|quota| quota.charge.clone()).collect()
}

fn tell<'a>(observers: &Observers, quotas: &'a [Quota], event: impl Fn(&'a admit::Scope) -> Event<'a>) {
    quotas.iter().for_each(|quota| observers.tell(event(&quota.charge.scope)));
}

/// The log has the cause, and the client what it stands under there.
fn failed(request: &Parts, error: &TakeError) -> Box<Rejected> {
    let id = CorrelationId::of(request);
    match error {
        TakeError::Charge(cause) => {
            error!(correlation_id = %id, error = %Causes(cause), "the charges are wrong");
            Rejected::failed(Rejection::Internal, id)
        }
        TakeError::Unavailable(cause) => {
            error!(correlation_id = %id, error = %Causes(cause), "budgets unavailable; the request does not run");
            Rejected::failed(Rejection::Unavailable, id)
        }
    }
}

#[cfg(test)]
mod tests {
    use admit::{Key, Rules, Scope};
    use admit_store::memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn a_peek_decides_alike_and_takes_nothing() {
        let scope = Scope::from_static("x");
        let limiter = Limiter::new(MemoryStore::new(Rules::new([scope.clone()]).unwrap()));
        let (parts, ()) = http::Request::new(()).into_parts();
        let quotas = || vec![Quota::new(scope.clone(), Key::of("k"), "1/hour".parse().unwrap(), "")];
        for _ in 0..2 {
            assert_eq!(limiter.peek(&parts, quotas()).await.unwrap().debits()[0].1, Some(1.0));
        }
        assert_eq!(limiter.decide(&parts, quotas()).await.unwrap().debits()[0].1, Some(0.0));
        let refused = limiter.peek(&parts, quotas()).await.unwrap_err();
        assert!(matches!(refused.why, Rejection::Refused(_)) && refused.fields.contains_key("ratelimit"));
        limiter.refund(&parts, &quotas()).await.unwrap();
        assert!(limiter.peek(&parts, quotas()).await.is_ok());
    }
}
