//! What a store does so that its buckets can be leased.

use std::future::Future;

use admit::{BudgetStore, Charge, Decision, Now, TakeError};

/// A store that [`Leased`](super::Leased) can stand in front of.
///
/// A store may give back by itself what a take debited whose caller has gone. Of a leased bucket it must not: what it gave back
/// would fill the bucket beside what processes hold of it, and more than the burst would be there at once. Where such tokens
/// go is for the leases to say.
pub trait Lessor: BudgetStore {
    /// [`BudgetStore::take`], except that what it debits stays debited: also if the future is dropped, or ends with an error
    /// while the store may still debit.
    ///
    /// # Errors
    /// As [`BudgetStore::take`].
    fn take_for_good(
        &self,
        charges: &[Charge],
        now: Now,
    ) -> impl Future<Output = Result<Decision, TakeError>> + Send;
}

/// Its take is done in one step: there is none whose caller has gone.
#[cfg(feature = "memory")]
impl Lessor for crate::memory::MemoryStore {
    fn take_for_good(
        &self,
        charges: &[Charge],
        now: Now,
    ) -> impl Future<Output = Result<Decision, TakeError>> + Send {
        self.take(charges, now)
    }
}

#[cfg(feature = "sqlite")]
impl Lessor for crate::sqlite::SqliteStore {
    async fn take_for_good(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        self.decide(charges, now, true).await
    }
}

#[cfg(feature = "postgres")]
impl Lessor for crate::postgres::PostgresStore {
    async fn take_for_good(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        self.decide(charges, now, true).await
    }
}

#[cfg(any(feature = "memory", feature = "sqlite", feature = "postgres"))]
impl Lessor for crate::AnyStore {
    async fn take_for_good(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(store) => store.take_for_good(charges, now).await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.take_for_good(charges, now).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.take_for_good(charges, now).await,
        }
    }
}
