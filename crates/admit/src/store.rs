//! What a store of buckets and a store of idempotency records do.

use std::future::Future;

use crate::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Terms, Ticket, TicketLost};
use crate::{Charge, ChargeError, Clock, Decision, Rules, Timestamp, Unavailable};

/// The moment at which a store decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Now {
    /// The store's own clock: one clock for all replicas. What a deployment passes.
    #[default]
    Store,
    /// A moment of the caller's, for tests and simulations.
    At(Timestamp),
}

impl Now {
    /// The caller's moment, if there is one.
    pub const fn given(self) -> Option<Timestamp> {
        match self {
            Self::Store => None,
            Self::At(moment) => Some(moment),
        }
    }

    /// The caller's moment, else what the store's `clock` shows.
    pub fn or_by(self, clock: &dyn Clock) -> Timestamp {
        self.given().unwrap_or_else(|| clock.now())
    }
}

/// Why a budget could not be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// The charges are wrong. No bucket was asked.
    #[error(transparent)]
    Charge(#[from] ChargeError),
    /// The store failed.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// A store of buckets. Clones share the buckets.
///
/// Every store gives the same decisions for the same operations at the same `now`, to the microsecond and the last bit
/// of `tokens`: [`Take`](crate::Take) shows how, and the `conformance` feature of `admit-store` holds it to that.
pub trait BudgetStore: Clone + Send + Sync + 'static {
    /// The scopes and the retention that charges are held to.
    fn rules(&self) -> &Rules;

    /// Debits all charges, or none.
    ///
    /// A dropped future may or may not have debited.
    ///
    /// # Errors
    /// [`TakeError`] if the budgets could not be evaluated: a third outcome, never to be told as a refusal.
    fn take(&self, charges: &[Charge], now: Now) -> impl Future<Output = Result<Decision, TakeError>> + Send;

    /// What [`BudgetStore::take`] would decide, with the tokens that are there now as what is left. Writes nothing.
    ///
    /// # Errors
    /// As [`BudgetStore::take`].
    fn peek(&self, charges: &[Charge], now: Now) -> impl Future<Output = Result<Decision, TakeError>> + Send;

    /// Gives back what a granted take debited, each bucket up to its burst. A bucket that is gone is full already.
    ///
    /// For a request that was admitted and then did not run; once for each granted take. All or nothing.
    ///
    /// # Errors
    /// As [`BudgetStore::take`].
    fn refund(&self, charges: &[Charge]) -> impl Future<Output = Result<(), TakeError>> + Send;

    /// Deletes the buckets that nobody took from for longer than the retention, and tells how many.
    ///
    /// # Errors
    /// [`Unavailable`] if the store failed; what was deleted until then stays deleted.
    fn delete_idle(&self, now: Now) -> impl Future<Output = Result<u64, Unavailable>> + Send;
}

/// Why a ticket could not be used.
#[derive(Debug, thiserror::Error)]
pub enum IdempotencyError {
    /// The lease has lapsed, or the record was completed or released before: this ticket has no more say.
    #[error("the ticket no longer holds its key: its lease has lapsed, or it was used before")]
    TicketLost,
    /// The store failed.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

impl From<TicketLost> for IdempotencyError {
    fn from(TicketLost: TicketLost) -> Self {
        Self::TicketLost
    }
}

/// A store of idempotency records. Clones share the records.
pub trait IdempotencyStore: Clone + Send + Sync + 'static {
    /// What [`IdempotencyStore::claim`] would answer, as far as that is not [`Claim::Run`]; nothing if the key is free.
    /// Writes nothing.
    ///
    /// # Errors
    /// [`Unavailable`] if the store failed.
    fn look(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> impl Future<Output = Result<Option<Claim>, Unavailable>> + Send;

    /// Claims the key for one run, or tells what became of the run that has it.
    ///
    /// # Errors
    /// [`Unavailable`] if the store failed.
    fn claim(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> impl Future<Output = Result<Claim, Unavailable>> + Send;

    /// Extends the lease of a run to `terms.lease` from now.
    ///
    /// # Errors
    /// [`IdempotencyError::TicketLost`] if the lease had lapsed already.
    fn renew(
        &self,
        ticket: &Ticket,
        terms: &Terms,
        now: Now,
    ) -> impl Future<Output = Result<Ticket, IdempotencyError>> + Send;

    /// Records what the run came to; later claims replay it until `terms.ttl` from now.
    ///
    /// # Errors
    /// [`IdempotencyError::TicketLost`] if the lease had lapsed: another run may have the key.
    fn complete(
        &self,
        ticket: &Ticket,
        outcome: &Outcome,
        terms: &Terms,
        now: Now,
    ) -> impl Future<Output = Result<(), IdempotencyError>> + Send;

    /// Frees the key, as if it had never been claimed.
    ///
    /// # Errors
    /// [`IdempotencyError::TicketLost`] if the lease had lapsed.
    fn release(&self, ticket: &Ticket, now: Now)
    -> impl Future<Output = Result<(), IdempotencyError>> + Send;

    /// Deletes the records whose time is over, and tells how many.
    ///
    /// # Errors
    /// [`Unavailable`] if the store failed; what was deleted until then stays deleted.
    fn delete_expired(&self, now: Now) -> impl Future<Output = Result<u64, Unavailable>> + Send;
}
