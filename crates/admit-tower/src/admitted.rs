//! Permission to run: what was debited for it, whole or in parts.

use std::sync::Arc;

use admit::Cost;
use http::HeaderMap;

use crate::Quota;
use crate::fields::Dialect;

/// Permission to run, and what it cost. The layers put it into the extensions of the request that runs,
/// unless its body was read before, for an idempotency key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admitted {
    pub(crate) dialect: Dialect,
    /// What was debited, and what each debit left: nothing for a request that was let through while the store
    /// could not answer.
    pub(crate) debits: Arc<Vec<(Quota, Option<f64>)>>,
}

impl Admitted {
    /// What was debited for the quotas from `index` on, apart from the rest.
    pub(crate) fn split_off(&mut self, index: usize) -> Self {
        let index = index.min(self.debits.len());
        let debits = match index == self.debits.len() {
            true => Arc::default(),
            false => Arc::new(Arc::make_mut(&mut self.debits).split_off(index)),
        };
        Self { debits, dialect: self.dialect }
    }

    /// This and a later payment as one.
    pub(crate) fn and(mut self, later: Self) -> Self {
        if !later.is_free() {
            Arc::make_mut(&mut self.debits).extend(Arc::unwrap_or_clone(later.debits));
        }
        Self { dialect: later.dialect, ..self }
    }

    /// What was debited, in the order of the quotas, and the tokens that each debit left: nothing for a cost
    /// of zero. Empty if the store could not answer and the request may run all the same.
    pub fn debits(&self) -> &[(Quota, Option<f64>)] {
        &self.debits
    }

    /// A part of it, for [`Limiter::give_back`](crate::Limiter::give_back): of each quota that `cost` says
    /// something of as much as it says, and no more than was debited.
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
        Self { debits: Arc::new(self.debits.iter().filter_map(part).collect()), dialect: self.dialect }
    }

    /// Whether nothing was debited.
    pub fn is_free(&self) -> bool {
        self.debits.is_empty()
    }

    /// The response fields that tell what is left.
    pub fn fields(&self) -> HeaderMap {
        let mut fields = HeaderMap::new();
        self.mark(&mut fields);
        fields
    }

    /// Adds the fields to those of a response.
    pub fn mark(&self, response: &mut HeaderMap) {
        self.dialect.mark_granted(response, self.debits.iter().map(|(quota, left)| (quota, *left)));
    }
}

#[cfg(test)]
mod tests {
    use admit::{Key, Rules, Scope};
    use admit_store::memory::MemoryStore;

    use super::*;
    use crate::{Admission, Limiter};

    /// Once an admission that debited nothing had the default dialect, and a payment before it was told in
    /// that.
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
