//! What `/metrics` tells of reloads.

use std::sync::atomic::AtomicU64;

use admit::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// How reloads went. Clones share it.
#[derive(Clone, Debug)]
pub struct ReloadMetrics {
    reloads: Family<OutcomeLabel, Counter>,
    loaded: Gauge<f64, AtomicU64>,
    current: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

impl ReloadMetrics {
    /// Registers them.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let reloads = Family::<OutcomeLabel, Counter>::default();
        for outcome in ["taken", "refused", "unchanged"] {
            drop(reloads.get_or_create(&OutcomeLabel { outcome })); // So that an alert finds a zero.
        }
        registry.register("admit_reloads", "Reloads of the policy by outcome", reloads.clone());
        let loaded = Gauge::default();
        let help = "When the policy in force was loaded, in seconds since 1970";
        registry.register("admit_policy_loaded_timestamp_seconds", help, loaded.clone());
        let current = Gauge::default();
        registry.register(
            "admit_policy_current",
            "Whether the policy on the disk is in force",
            current.clone(),
        );
        Self { reloads, loaded, current }
    }

    pub(super) fn in_force(&self, since: Timestamp) {
        self.loaded.set(since.unix_micros() as f64 / 1e6);
        self.current.set(1);
    }

    pub(super) fn taken(&self, since: Timestamp) {
        self.count("taken");
        self.in_force(since);
    }

    pub(super) fn unchanged(&self) {
        self.count("unchanged");
        self.current.set(1);
    }

    pub(super) fn refused(&self) {
        self.count("refused");
        self.current.set(0);
    }

    fn count(&self, outcome: &'static str) {
        self.reloads.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}
