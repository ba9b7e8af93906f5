//! Decides whether a request fits its quotas, and says so in HTTP.

use std::time::Duration;

use admit::{
    BudgetStore, Causes, Charge, Cost, Decision, Grant, TakeError, TimeSource, Timestamp, Unavailable,
};
use http::HeaderMap;
use http::request::Parts;
use tracing::{debug, error, warn};

use crate::fields::Dialect;
use crate::observe::{Event, Observer, Observers};
use crate::rejection::{Render, Renders};
use crate::{CorrelationId, OnUnavailable, Problem, Quota, Refused, Rejection};

/// How long a store may take to decide before it counts as unavailable.
const DEFAULT_TIME_LIMIT: Duration = Duration::from_secs(5);

/// A store of budgets, and how its decisions are told. Clones share the store.
///
/// [`BudgetLayer`](crate::BudgetLayer) asks it for each request; a handler that knows its cost only after a look at the
/// request asks it directly.
#[derive(Clone, Debug)]
pub struct Limiter<S> {
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

/// Permission to run, and what it cost. The layers put it into the extensions of the request that runs, unless its body
/// was read before, for an idempotency key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admitted {
    dialect: Dialect,
    /// What was debited, and what each debit left: nothing for a request that was let through while the store could not
    /// answer.
    debits: Vec<(Quota, Option<f64>)>,
    at: Option<Timestamp>,
}

impl Admitted {
    /// What was debited for the quotas from `index` on, apart from the rest.
    pub(crate) fn split_off(&mut self, index: usize) -> Self {
        let debits = self.debits.split_off(index.min(self.debits.len()));
        Self { debits, ..*self }
    }

    /// This and a later payment as one.
    pub(crate) fn and(mut self, later: Self) -> Self {
        self.debits.extend(later.debits);
        Self { dialect: later.dialect, at: self.at.max(later.at), ..self }
    }

    /// A part of it, for [`Limiter::give_back`]: of each quota that `cost` says something of as much as it says, and no more
    /// than was debited.
    #[must_use]
    pub fn part(&self, cost: impl Fn(&Quota) -> Option<Cost>) -> Self {
        let part = |(quota, _): &(Quota, _)| {
            let mut quota = quota.clone();
            let cost = cost(&quota)?;
            if cost < quota.charge.cost {
                quota.charge.cost = cost;
            }
            Some((quota, None))
        };
        Self { debits: self.debits.iter().filter_map(part).collect(), ..*self }
    }

    /// Whether nothing was debited.
    pub fn is_free(&self) -> bool {
        self.debits.is_empty()
    }

    /// The response fields that tell what is left.
    pub fn fields(&self) -> HeaderMap {
        let (quotas, left): (Vec<_>, Vec<_>) = self.debits.iter().cloned().unzip();
        self.dialect.granted(&quotas, &Grant { at: self.at, left })
    }

    /// Adds the fields to those of a response.
    pub fn mark(&self, response: &mut HeaderMap) {
        crate::fields::merge(response, &self.fields());
    }
}

impl<S: BudgetStore> Limiter<S> {
    /// A limiter on this store, with the store's own clock and the fields of [`Dialect::Draft11`].
    pub fn new(store: S) -> Self {
        Self {
            store,
            time: TimeSource::default(),
            dialect: Dialect::default(),
            time_limit: DEFAULT_TIME_LIMIT,
            renders: Renders::default(),
            observers: Observers::default(),
        }
    }

    /// Sets where `now` comes from.
    #[must_use]
    pub fn time(mut self, time: TimeSource) -> Self {
        self.time = time;
        self
    }

    /// Sets the form in which clients are told how they stand.
    #[must_use]
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Sets how long a store may take to decide before it counts as unavailable; a take that was under way then may
    /// still debit. Default 5 s: past it most callers have given up.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Sets how rejections read.
    #[must_use]
    pub fn render(mut self, render: impl Render) -> Self {
        self.renders = Renders::new(render);
        self
    }

    /// Sets who is told of every decision.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers = Observers::new(observer);
        self
    }

    /// Charges all quotas, or none. Without quotas the request is admitted without a question.
    pub async fn admit(&self, request: &Parts, quotas: Vec<Quota>) -> Admission {
        if quotas.is_empty() {
            return self.uncharged();
        }
        let charges: Vec<Charge> = quotas.iter().map(|quota| quota.charge.clone()).collect();
        let take = self.store.take(&charges, self.time.now());
        match tokio::time::timeout(self.time_limit, take).await {
            Ok(Ok(Decision::Granted(grant))) => {
                self.tell(&quotas, Event::Granted);
                let debits = quotas.into_iter().zip(grant.left).collect();
                Admission::Admitted(Admitted { dialect: self.dialect, debits, at: grant.at })
            }
            Ok(Ok(Decision::Refused(refusal))) => {
                let refused = Refused { quotas, refusal };
                for (quota, wait) in refused.violated() {
                    debug!(scope = quota.name(), ?wait, "refused");
                    self.observers.tell(Event::Refused(&quota.charge.scope));
                }
                let fields = self.dialect.refused(&refused);
                self.reject(request, Rejection::Refused(refused), None, fields)
            }
            Ok(Err(TakeError::Charge(cause))) => {
                let id = CorrelationId::of(request);
                error!(correlation_id = %id, error = %Causes(&cause), "the charges are wrong");
                self.tell(&quotas, Event::Unavailable);
                self.reject(request, Rejection::Internal, Some(&id), HeaderMap::new())
            }
            Ok(Err(TakeError::Unavailable(cause))) => self.unavailable(request, &quotas, &cause),
            Err(elapsed) => self.unavailable(request, &quotas, &Unavailable::new("budget", elapsed)),
        }
    }

    fn uncharged(&self) -> Admission {
        Admission::Admitted(Admitted { dialect: self.dialect, ..Admitted::default() })
    }

    fn unavailable(&self, request: &Parts, quotas: &[Quota], cause: &Unavailable) -> Admission {
        let id = CorrelationId::of(request);
        if quotas.iter().all(|quota| quota.on_unavailable == OnUnavailable::FailOpen) {
            warn!(correlation_id = %id, error = %Causes(cause), "budgets unavailable; the request runs uncharged");
            self.tell(quotas, Event::FailedOpen);
            return self.uncharged();
        }
        error!(correlation_id = %id, error = %Causes(cause), "budgets unavailable; the request does not run");
        self.tell(quotas, Event::Unavailable);
        self.reject(request, Rejection::Unavailable, Some(&id), HeaderMap::new())
    }

    fn reject(
        &self,
        request: &Parts,
        why: Rejection,
        id: Option<&CorrelationId>,
        fields: HeaderMap,
    ) -> Admission {
        let mut problem = self.renders.problem(request, &why, id);
        for (name, value) in fields {
            if let Some(name) = name {
                problem = problem.header(name, value);
            }
        }
        Admission::Rejected(Box::new(problem))
    }

    fn tell<'a>(&self, quotas: &'a [Quota], event: impl Fn(&'a admit::Scope) -> Event<'a>) {
        quotas.iter().for_each(|quota| self.observers.tell(event(&quota.charge.scope)));
    }

    /// Gives back what an admission debited, for a request that did not run after all. If the store cannot, the tokens
    /// stay spent and the log says so.
    pub async fn give_back(&self, admitted: Admitted) {
        if admitted.debits.is_empty() {
            return;
        }
        let charges: Vec<Charge> = admitted.debits.into_iter().map(|(quota, _)| quota.charge).collect();
        match tokio::time::timeout(self.time_limit, self.store.refund(&charges)).await {
            Ok(Ok(())) => {}
            Ok(Err(cause)) => warn!(error = %Causes(&cause), "a charge was not given back"),
            Err(elapsed) => warn!(error = %Causes(&elapsed), "a charge was not given back"),
        }
    }
}

#[cfg(test)]
mod tests {
    use admit::{Key, Rules, Scope};
    use admit_store::memory::MemoryStore;

    use super::*;

    /// Once an admission that debited nothing had the default dialect, and a payment before it was told in that.
    #[tokio::test]
    async fn what_is_paid_in_parts_is_told_in_the_dialect_of_the_limiter() {
        let scope = Scope::from_static("x");
        let rules = Rules::new([scope.clone()]).unwrap();
        let limiter = Limiter::new(MemoryStore::new(rules)).dialect(Dialect::Legacy);
        let (parts, ()) = http::Request::new(()).into_parts();
        let admitted = async |quotas| match limiter.admit(&parts, quotas).await {
            Admission::Admitted(admitted) => admitted,
            Admission::Rejected(problem) => panic!("{problem:?}"),
        };
        let one = admitted(vec![Quota::new(scope, Key::of("k"), "2/hour".parse().unwrap(), "")]).await;
        let none = admitted(Vec::new()).await;
        assert_eq!(one.and(none).fields()["x-ratelimit-remaining"], "1");
    }

    #[tokio::test]
    async fn no_more_is_given_back_than_was_debited() {
        let scope = Scope::from_static("x");
        let limiter = Limiter::new(MemoryStore::new(Rules::new([scope.clone()]).unwrap()));
        let quota = |cost: u64| {
            let quota = Quota::new(scope.clone(), Key::of("k"), "100/hour".parse().unwrap(), "");
            quota.cost(Cost::bytes(cost))
        };
        let (parts, ()) = http::Request::new(()).into_parts();
        let admitted = async |cost| match limiter.admit(&parts, vec![quota(cost)]).await {
            Admission::Admitted(admitted) => admitted,
            Admission::Rejected(problem) => panic!("{problem:?}"),
        };
        admitted(50).await;
        let paid = admitted(30).await;
        assert!(paid.part(|_| None).is_free());
        limiter.give_back(paid.part(|_| Some(Cost::bytes(10)))).await;
        assert_eq!(admitted(0).await.debits[0].1, None, "which asks no store");
        assert_eq!(admitted(1).await.debits[0].1.map(f64::floor), Some(29.0));
        limiter.give_back(paid.part(|_| Some(Cost::bytes(1_000)))).await;
        assert_eq!(admitted(1).await.debits[0].1.map(f64::floor), Some(58.0));
    }
}
