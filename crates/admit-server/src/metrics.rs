//! What `/metrics` tells. Labels are closed sets: budgets of the policy, outcomes, statuses; never a key or a path.

use std::ops::Deref;
use std::sync::Arc;

use admit::{Clock, MonotonicClock, Scope, Timestamp};
use admit_tower::{Event, Observer};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::admin::DecisionTotals;
use crate::lease_metrics::LeaseMetrics;
use crate::reload::ReloadMetrics;
use crate::store_metrics::StoreMetrics;

/// The modes of budgets, as a label has them.
const ENFORCE: &str = "enforce";
const SHADOW: &str = "shadow";

/// All metrics of the program. Clones share them: each request has some.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Series>);

/// What [`Metrics`] has.
#[derive(Debug)]
pub struct Series {
    clock: MonotonicClock,
    registry: Registry,
    answers: Family<StatusLabel, Counter>,
    answer_seconds: Histogram,
    decisions: Family<DecisionLabels, Counter>,
    keyed: Family<OutcomeLabel, Counter>,
    upstream_failures: Family<KindLabel, Counter>,
    /// Of enforced budgets, all of them together; no series of its own.
    totals: Family<OutcomeLabel, Counter>,
    /// How the store does.
    pub store: StoreMetrics,
    /// What is leased of it.
    pub leases: LeaseMetrics,
    /// How reloads of the policy went.
    pub reload: ReloadMetrics,
}

/// The metrics as they observe budgets in shadow mode: what these decide is counted apart.
#[derive(Clone, Debug)]
pub struct ShadowMetrics(pub Metrics);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    budget: String,
    mode: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

impl Deref for Metrics {
    type Target = Series;

    fn deref(&self) -> &Series {
        &self.0
    }
}

impl Default for Series {
    fn default() -> Self {
        let mut registry = Registry::default();
        let answers = Family::default();
        registry.register("admit_answers", "Answers by status", answers.clone());
        let answer_seconds = Histogram::new(exponential_buckets(0.000_25, 2.0, 16)); // 250 µs to 8 s.
        registry.register(
            "admit_answer_seconds",
            "Time from a request's head to its answer's, the service behind included",
            answer_seconds.clone(),
        );
        let decisions = Family::default();
        registry.register("admit_decisions", "Decisions by budget, mode and outcome", decisions.clone());
        let keyed = Family::default();
        registry.register("admit_idempotency", "What became of requests with a key", keyed.clone());
        let upstream_failures = Family::default();
        let help = "What upstreams did wrong: a request that was then tried on another counts here too";
        registry.register("admit_upstream_failures", help, upstream_failures.clone());
        let help = "Lines that the log left out, as too many of one kind came in a second";
        registry.register("admit_log_lines_left_out", help, crate::trace::left_out());
        let reload = ReloadMetrics::register(&mut registry);
        let store = StoreMetrics::register(&mut registry);
        let leases = LeaseMetrics::register(&mut registry);
        let totals = Family::default();
        Self {
            clock: MonotonicClock::start(),
            registry,
            answers,
            answer_seconds,
            decisions,
            keyed,
            upstream_failures,
            totals,
            store,
            leases,
            reload,
        }
    }
}

impl Series {
    /// A request begins.
    pub(crate) fn begin(&self) -> Timestamp {
        self.clock.now()
    }

    /// An answer of any front to a request that began then.
    pub(crate) fn answered(&self, status: u16, began: Timestamp) {
        self.answers.get_or_create(&StatusLabel { status }).inc();
        self.answer_seconds.observe(self.clock.now().since(began).as_secs_f64());
    }

    /// An upstream that failed, by one of a few kinds.
    pub fn upstream_failed(&self, kind: &'static str) {
        self.upstream_failures.get_or_create(&KindLabel { kind }).inc();
    }

    /// In the OpenMetrics text format.
    ///
    /// # Errors
    /// If a metric cannot be written, which none of these is known to do.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// What enforced budgets decided so far.
    pub fn totals(&self) -> DecisionTotals {
        let of = |outcome| self.totals.get_or_create(&OutcomeLabel { outcome }).get();
        DecisionTotals {
            granted: of("granted"),
            refused: of("refused"),
            unavailable: of("unavailable"),
            admitted_unavailable: of("admitted_unavailable"),
        }
    }

    /// Drops the series of a budget that the policy has no more: those of all policies that ever were have no bound.
    pub(crate) fn forget(&self, budget: &Scope) {
        for mode in [ENFORCE, SHADOW] {
            for outcome in ["granted", "refused", "unavailable", "admitted_unavailable"] {
                self.decisions.remove(&DecisionLabels { budget: budget.to_string(), mode, outcome });
            }
        }
    }

    fn decided(&self, mode: &'static str, event: Event<'_>) {
        let (scope, outcome) = match event {
            Event::Granted(scope) => (scope, "granted"),
            Event::Refused(scope) => (scope, "refused"),
            Event::Unavailable(scope) => (scope, "unavailable"),
            Event::FailedOpen(scope) => (scope, "admitted_unavailable"),
            Event::Idempotency(keyed) => {
                self.keyed.get_or_create(&OutcomeLabel { outcome: keyed.as_str() }).inc();
                return;
            }
            _ => return,
        };
        self.decisions.get_or_create(&DecisionLabels { budget: scope.to_string(), mode, outcome }).inc();
        if mode == ENFORCE {
            self.totals.get_or_create(&OutcomeLabel { outcome }).inc();
        }
    }
}

impl Observer for Metrics {
    fn observe(&self, event: Event<'_>) {
        self.decided(ENFORCE, event);
    }
}

impl Observer for ShadowMetrics {
    fn observe(&self, event: Event<'_>) {
        self.0.decided(SHADOW, event);
    }
}
