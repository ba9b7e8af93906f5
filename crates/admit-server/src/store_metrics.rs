//! What `/metrics` tells of the store: how long it takes, whether it answers, and in what way it does not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use admit::{Clock, MonotonicClock, Timestamp, UnavailableKind};
use admit_store::AnyStore;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// A call that nobody waits for any more after this long had no answer in time. Shorter, its client just went away.
const GIVEN_UP: Duration = Duration::from_secs(1);

/// How the store does. Clones share it.
#[derive(Clone, Debug)]
pub struct StoreMetrics {
    seconds: Family<CallLabels, Histogram>,
    errors: Family<KindLabel, Counter>,
    up: Gauge,
    unanswered: Counter,
    remembered: Counter,
    clock: Arc<MonotonicClock>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    store: &'static str,
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// A call that is under way. Dropped without an end, it was given up.
#[derive(Debug)]
pub(crate) struct Call<'m> {
    metrics: &'m StoreMetrics,
    labels: CallLabels,
    began: Timestamp,
    ended: bool,
}

impl StoreMetrics {
    /// Registers them.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let seconds = Family::<CallLabels, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.000_025, 2.0, 19)) // 25 µs to 6.5 s.
        });
        registry.register("admit_store_seconds", "Time of calls to the store", seconds.clone());
        let errors = Family::<KindLabel, Counter>::default();
        for kind in UnavailableKind::ALL {
            drop(errors.get_or_create(&KindLabel { kind: kind.as_str() })); // So that an alert finds a zero.
        }
        registry.register(
            "admit_store_errors",
            "Calls that the store did not answer, by kind",
            errors.clone(),
        );
        let up = Gauge::default();
        up.set(1); // It was opened.
        registry.register("admit_store_up", "Whether the store answered when it was last asked", up.clone());
        let unanswered = Counter::default();
        registry.register(
            "admit_store_unanswered_takes",
            "Takes that may have debited their buckets, and were granted to nobody",
            unanswered.clone(),
        );
        let remembered = Counter::default();
        registry.register(
            "admit_store_remembered_refusals",
            "Takes that were refused by what the process remembers, and the store not asked",
            remembered.clone(),
        );
        Self { seconds, errors, up, unanswered, remembered, clock: Arc::new(MonotonicClock::start()) }
    }

    /// What the store counts itself, for who asks next.
    pub fn counts(&self, store: &AnyStore) {
        self.unanswered.inner().fetch_max(store.unanswered_takes(), Ordering::Relaxed);
        self.remembered.inner().fetch_max(store.remembered_refusals(), Ordering::Relaxed);
    }

    /// A call begins.
    pub(crate) fn begin(&self, store: &'static str, operation: &'static str) -> Call<'_> {
        let labels = CallLabels { store, operation };
        Call { metrics: self, labels, began: self.clock.now(), ended: false }
    }
}

impl Call<'_> {
    /// The store answered, or told in what way it does not.
    pub(crate) fn end(mut self, answer: Result<(), UnavailableKind>) {
        self.ended = true;
        self.observe();
        match answer {
            // A take may have been refused by what the process remembers, and the store not asked.
            Ok(()) if self.labels.operation == "take" => {}
            Ok(()) => drop(self.metrics.up.set(1)),
            Err(kind) => self.count(kind),
        }
    }

    fn count(&self, kind: UnavailableKind) {
        self.metrics.errors.get_or_create(&KindLabel { kind: kind.as_str() }).inc();
        match kind {
            UnavailableKind::Full => {} // A bound of this process says nothing of a server.
            // Somebody may hold the one row that it needs. A peek waits for no row, and in SQLite it is the whole file.
            UnavailableKind::TimedOut
                if self.labels.store == "postgres" && self.labels.operation != "peek" => {}
            _ => drop(self.metrics.up.set(0)),
        }
    }

    fn observe(&self) -> Duration {
        let took = self.metrics.clock.now().since(self.began);
        self.metrics.seconds.get_or_create(&self.labels).observe(took.as_secs_f64());
        took
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.ended && self.observe() >= GIVEN_UP {
            self.count(UnavailableKind::TimedOut);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refusal that needs no store said that it is up; one row that somebody held said that it is down.
    #[test]
    fn a_store_is_up_or_down_by_what_asked_it() {
        let metrics = StoreMetrics::register(&mut Registry::default());
        let cases = [
            ("peek", Ok(()), 1),
            ("take", Err(UnavailableKind::TimedOut), 1),
            ("refund", Err(UnavailableKind::TimedOut), 1),
            ("take", Err(UnavailableKind::Full), 1),
            ("take", Err(UnavailableKind::Refused), 0),
            ("take", Ok(()), 0),
            ("take", Err(UnavailableKind::Full), 0),
            ("refund", Ok(()), 1),
            ("peek", Err(UnavailableKind::TimedOut), 0),
            ("admit", Ok(()), 1),
        ];
        for (i, (operation, answer, up)) in cases.into_iter().enumerate() {
            metrics.begin("postgres", operation).end(answer);
            assert_eq!(metrics.up.get(), up, "{i}: {operation}");
        }
        metrics.begin("sqlite", "refund").end(Err(UnavailableKind::TimedOut));
        assert_eq!(metrics.up.get(), 0, "the file is locked");
    }
}
