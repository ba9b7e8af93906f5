//! A store whose calls are measured and traced.

use std::future::Future;
use std::time::Duration;

use admit::idempotency::{Fingerprint, RecordKey, Terms};
use admit::{
    AdmissionError, AdmissionStore, BudgetStore, Charge, Decision, IdempotencyError, Now, Rules, TakeError,
    Unavailable, UnavailableKind, Verdict,
};
use admit_store::leases::Lessor;
use admit_store::{AnyStore, Leader, Leadership};
use tracing::Instrument;

use crate::store_metrics::StoreMetrics;

/// The store, and what is told of its calls. Clones share both.
#[derive(Clone, Debug)]
pub struct Measured {
    store: AnyStore,
    metrics: StoreMetrics,
}

impl Measured {
    /// Measures this store.
    pub fn new(store: AnyStore, metrics: StoreMetrics) -> Self {
        Self { store, metrics }
    }

    async fn call<T, E: Outage>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        let store = self.store.kind();
        let span = tracing::info_span!(target: crate::trace::TARGET, "store", operation, store);
        let measuring = self.metrics.begin(store, operation);
        let answer = call.instrument(span).await;
        measuring.end(answer.as_ref().map(drop).or_else(|error| error.outage().map_or(Ok(()), Err)));
        answer
    }
}

/// Errors of a store, among them that it is unavailable.
trait Outage {
    fn outage(&self) -> Option<UnavailableKind>;
}

impl Outage for Unavailable {
    fn outage(&self) -> Option<UnavailableKind> {
        Some(self.kind())
    }
}

impl Outage for TakeError {
    fn outage(&self) -> Option<UnavailableKind> {
        match self {
            Self::Unavailable(cause) => cause.outage(),
            Self::Charge(_) => None,
        }
    }
}

impl Outage for AdmissionError {
    fn outage(&self) -> Option<UnavailableKind> {
        match self {
            Self::Budgets(cause) => cause.outage(),
            Self::Records(cause) => cause.outage(),
        }
    }
}

impl Outage for IdempotencyError {
    fn outage(&self) -> Option<UnavailableKind> {
        match self {
            Self::Unavailable(cause) => cause.outage(),
            Self::TicketLost => None,
        }
    }
}

impl BudgetStore for Measured {
    fn rules(&self) -> &Rules {
        self.store.rules()
    }

    async fn take(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        self.call("take", self.store.take(charges, now)).await
    }

    async fn peek(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        self.call("peek", self.store.peek(charges, now)).await
    }

    async fn refund(&self, charges: &[Charge]) -> Result<(), TakeError> {
        self.call("refund", self.store.refund(charges)).await
    }

    async fn delete_idle(&self, now: Now) -> Result<u64, Unavailable> {
        self.call("delete_idle", self.store.delete_idle(now)).await
    }
}

impl Lessor for Measured {
    async fn take_for_good(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        self.call("take", self.store.take_for_good(charges, now)).await
    }
}

macro_rules! via {
    ($measured:expr, $method:ident($($argument:expr),*)) => {
        $measured.call(stringify!($method), $measured.store.$method($($argument),*)).await
    };
}

admit::pass_records_on!([] Measured, via);

impl AdmissionStore for Measured {
    async fn admit(
        &self,
        charges: &[Charge],
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Verdict, AdmissionError> {
        via!(self, admit(charges, key, fingerprint, terms, now))
    }

    fn admits_in_one_step(&self, charges: &[Charge]) -> bool {
        self.store.admits_in_one_step(charges)
    }
}

impl Leader for Measured {
    async fn lead(
        &self,
        name: &str,
        holder: &str,
        lease: Duration,
        now: Now,
    ) -> Result<Option<Leadership>, Unavailable> {
        self.call("lead", self.store.lead(name, holder, lease, now)).await
    }
}
