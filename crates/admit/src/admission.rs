//! The admission of a request that is to run once: look its key up, take its budgets and claim the key, as one operation.

use std::future::Future;

use crate::idempotency::{Claim, Fingerprint, RecordKey, Terms, Ticket};
use crate::{
    BudgetStore, Charge, Decision, Grant, IdempotencyStore, Now, Prepared, Refusal, TakeError, Unavailable,
};

/// What a store says to a request that is to run once.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a request may run only if it was admitted"]
pub enum Verdict {
    /// All charges were debited and the key was claimed: run, then complete or release.
    Run(Ticket, Grant),
    /// The key is not free. Nothing was charged. Never [`Claim::Run`].
    Taken(Claim),
    /// The key is free, and the charges do not fit. Nothing was charged, and the key stays free.
    Refused(Refusal),
}

/// Why a store could not say whether a request may run.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The charges are wrong, or the budgets could not be evaluated; of a store that does all in one step, also that it
    /// failed anyhow.
    #[error(transparent)]
    Budgets(#[from] TakeError),
    /// The records could not be asked.
    #[error(transparent)]
    Records(Unavailable),
}

/// A store of both buckets and records, which can admit a request that is to run once as one operation.
///
/// The answer is that of [`IdempotencyStore::look`], [`BudgetStore::take`] and [`IdempotencyStore::claim`] one after the
/// other: a key that is not free is told as it is and nothing is charged, so that a replay is answered though its buckets are
/// empty; charges that do not fit leave no record; and only what is granted is claimed. A store that does all of it in one
/// step cannot lose the key to another between the take and the claim.
pub trait AdmissionStore: BudgetStore + IdempotencyStore {
    /// Debits all charges and claims the key, or does neither.
    ///
    /// Without a body of its own it is [`one_by_one`].
    ///
    /// A dropped future may or may not have debited and claimed, and so may one that failed; the claim then lasts until its lease
    /// lapses. Where the terms are [`OnLapse::StayBlocked`](crate::idempotency::OnLapse::StayBlocked) the key then stays blocked
    /// for its whole time, though nothing ran: the store cannot know.
    ///
    /// # Errors
    /// [`AdmissionError`] if that could not be found out: a third outcome, never to be told as a refusal.
    fn admit(
        &self,
        charges: &[Charge],
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> impl Future<Output = Result<Verdict, AdmissionError>> + Send {
        one_by_one(self, charges, key, fingerprint, terms, now)
    }

    /// Whether [`admit`](Self::admit) debits these charges and claims the key in one step: not one without the other, whenever
    /// its future is dropped. Where it does not, a caller that may stop waiting had better make the three calls itself: it knows
    /// then what was debited, and can give that back. Without a body of its own it does not.
    fn admits_in_one_step(&self, charges: &[Charge]) -> bool {
        let _ = charges;
        false
    }
}

/// Up to three calls in place of one: look, take, claim. If another claims the key between the look and the claim, what was
/// debited is given back. A future that is dropped between the take and the claim gives nothing back.
///
/// # Errors
/// As [`AdmissionStore::admit`]. Also if the key was lost to another, and what was debited could not be given back.
pub async fn one_by_one(
    store: &(impl BudgetStore + IdempotencyStore),
    charges: &[Charge],
    key: &RecordKey,
    fingerprint: &Fingerprint,
    terms: &Terms,
    now: Now,
) -> Result<Verdict, AdmissionError> {
    let prepared = store.rules().prepare(charges).map_err(TakeError::from)?;
    // Where nothing can be refused, the claim tells all.
    if !matches!(prepared, Prepared::Decided(Decision::Granted(_)))
        && let Some(taken) =
            store.look(key, fingerprint, terms, now).await.map_err(AdmissionError::Records)?
    {
        return Ok(Verdict::Taken(taken));
    }
    let decision = match prepared {
        Prepared::Decided(decision) => decision,
        Prepared::Ask(_) => store.take(charges, now).await?,
    };
    let grant = match decision {
        Decision::Granted(grant) => grant,
        Decision::Refused(refusal) => return Ok(Verdict::Refused(refusal)),
    };
    match store.claim(key, fingerprint, terms, now).await {
        Ok(Claim::Run(ticket)) => Ok(Verdict::Run(ticket, grant)),
        Ok(taken) => {
            store.refund(charges).await?;
            Ok(Verdict::Taken(taken))
        }
        Err(cause) => {
            let _ = store.refund(charges).await; // The store is failing, and the caller hears of that.
            Err(AdmissionError::Records(cause))
        }
    }
}

/// Implements [`IdempotencyStore`] for a type in front of another store, each call passed on by a macro of the caller's:
/// `$via!(self, method(arguments))` is the answer.
///
/// ```
/// use admit::IdempotencyStore;
///
/// #[derive(Clone)]
/// struct Behind<S>(S);
///
/// macro_rules! via {
///     ($this:expr, $method:ident($($argument:expr),*)) => { $this.0.$method($($argument),*).await };
/// }
///
/// admit::pass_records_on!([S: IdempotencyStore] Behind<S>, via);
/// ```
#[macro_export]
macro_rules! pass_records_on {
    ([$($generics:tt)*] $type:ty, $via:ident) => {
        impl<$($generics)*> $crate::IdempotencyStore for $type {
            async fn look(
                &self,
                key: &$crate::idempotency::RecordKey,
                fingerprint: &$crate::idempotency::Fingerprint,
                terms: &$crate::idempotency::Terms,
                now: $crate::Now,
            ) -> Result<Option<$crate::idempotency::Claim>, $crate::Unavailable> {
                $via!(self, look(key, fingerprint, terms, now))
            }

            async fn claim(
                &self,
                key: &$crate::idempotency::RecordKey,
                fingerprint: &$crate::idempotency::Fingerprint,
                terms: &$crate::idempotency::Terms,
                now: $crate::Now,
            ) -> Result<$crate::idempotency::Claim, $crate::Unavailable> {
                $via!(self, claim(key, fingerprint, terms, now))
            }

            async fn renew(
                &self,
                ticket: &$crate::idempotency::Ticket,
                terms: &$crate::idempotency::Terms,
                now: $crate::Now,
            ) -> Result<$crate::idempotency::Ticket, $crate::IdempotencyError> {
                $via!(self, renew(ticket, terms, now))
            }

            async fn complete(
                &self,
                ticket: &$crate::idempotency::Ticket,
                outcome: &$crate::idempotency::Outcome,
                terms: &$crate::idempotency::Terms,
                now: $crate::Now,
            ) -> Result<(), $crate::IdempotencyError> {
                $via!(self, complete(ticket, outcome, terms, now))
            }

            async fn release(
                &self,
                ticket: &$crate::idempotency::Ticket,
                now: $crate::Now,
            ) -> Result<(), $crate::IdempotencyError> {
                $via!(self, release(ticket, now))
            }

            async fn delete_expired(&self, now: $crate::Now) -> Result<u64, $crate::Unavailable> {
                $via!(self, delete_expired(now))
            }
        }
    };
}
