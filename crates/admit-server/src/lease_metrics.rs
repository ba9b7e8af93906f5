//! What `/metrics` tells of leases: what this process holds, and what became of its slices.

use std::fmt;
use std::sync::atomic::AtomicU64;

use admit::MonotonicClock;
use admit_store::leases::{Counts, Leased, Leases};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::measured::Measured;

/// How leases do. Clones share it.
#[derive(Clone, Debug)]
pub struct LeaseMetrics {
    counts: Counts,
    held: Gauge<f64, AtomicU64>,
}

impl LeaseMetrics {
    /// Registers them.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let counts = Counts::default();
        registry.register_collector(Box::new(Collected(counts.clone())));
        let held = Gauge::default();
        registry.register("admit_lease_tokens", "Tokens that this process holds now", held.clone());
        Self { counts, held }
    }

    /// The store with leases that are counted here.
    pub(crate) fn lease(&self, store: Measured, leases: Leases) -> Leased<Measured> {
        Leased::with(store, leases, MonotonicClock::start(), self.counts.clone())
    }

    /// What is held now, for who asks next.
    pub fn holds(&self, leased: &Leased<Measured>) {
        self.held.set(leased.held());
    }
}

/// The counts as they are when somebody asks.
#[derive(Debug)]
struct Collected(Counts);

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Self(counts) = self;
        let outcomes =
            [("taken", counts.taken()), ("refused", counts.refused()), ("unanswered", counts.unanswered())];
        let help = "Slices that the store was asked for, by outcome";
        let mut slices = encoder.encode_descriptor("admit_lease_slices", help, None, MetricType::Counter)?;
        for (outcome, count) in outcomes {
            ConstCounter::new(count).encode(slices.encode_family(&[("outcome", outcome)])?)?;
        }
        let tokens = [
            ("admit_lease_taken_tokens", "Tokens of slices that the store granted", counts.taken_tokens()),
            ("admit_lease_lapsed_tokens", "Tokens of slices that lapsed unspent", counts.lapsed_tokens()),
            (
                "admit_lease_unanswered_tokens",
                "Tokens of slices without an answer",
                counts.unanswered_tokens(),
            ),
        ];
        for (name, help, tokens) in tokens {
            let counter = ConstCounter::new(tokens);
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        Ok(())
    }
}
