//! What `/metrics` tells. Labels are closed sets: no key, tenant or path of a client's becomes one.

use std::sync::Arc;
use std::time::Duration;

use admit_tower::{Event, Observer};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// All metrics of the service. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Family<RouteLabel, Histogram, fn() -> Histogram>,
    decisions: Family<DecisionLabels, Counter>,
    keyed: Family<OutcomeLabel, Counter>,
    jobs: Family<OutcomeLabel, Counter>,
    items: Counter,
    open_jobs: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    scope: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 14)) // 1 ms to 8 s.
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let requests = Family::default();
        registry.register("memory_http_requests", "Answers by route and status", requests.clone());
        let request_seconds = Family::new_with_constructor(seconds as fn() -> Histogram);
        registry.register(
            "memory_http_request_seconds",
            "Time from a request's head to its answer's",
            request_seconds.clone(),
        );
        let decisions = Family::default();
        registry.register(
            "memory_budget_decisions",
            "Budget decisions by scope and outcome",
            decisions.clone(),
        );
        let keyed = Family::default();
        registry.register("memory_ingests", "What became of ingests, by their ids", keyed.clone());
        let jobs = Family::default();
        registry.register("memory_jobs", "Jobs that this process worked on, by outcome", jobs.clone());
        let items = Counter::default();
        registry.register("memory_items", "Items that this process made searchable", items.clone());
        let open_jobs = Gauge::default();
        registry.register("memory_jobs_open", "Jobs that wait or run, in the store", open_jobs.clone());
        let registry = Arc::new(registry);
        Self { registry, requests, request_seconds, decisions, keyed, jobs, items, open_jobs }
    }
}

impl Metrics {
    /// An answer on a route of the service.
    pub fn answered(&self, route: &str, status: u16, took: Duration) {
        let route = route.to_owned();
        self.requests.get_or_create(&RequestLabels { route: route.clone(), status }).inc();
        self.request_seconds.get_or_create(&RouteLabel { route }).observe(took.as_secs_f64());
    }

    /// A job that this process worked on.
    pub fn job(&self, outcome: &'static str, items: usize) {
        self.jobs.get_or_create(&OutcomeLabel { outcome }).inc();
        self.items.inc_by(items as u64);
    }

    /// How many jobs the store has open.
    pub fn open_jobs(&self, count: u64) {
        self.open_jobs.set(i64::try_from(count).unwrap_or(i64::MAX));
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
}

impl Observer for Metrics {
    fn observe(&self, event: Event<'_>) {
        let (scope, outcome) = match event {
            Event::Granted(scope) => (scope, "granted"),
            Event::Refused(scope) => (scope, "refused"),
            Event::Unavailable(scope) => (scope, "unavailable"),
            Event::FailedOpen(scope) => (scope, "failed_open"),
            Event::Idempotency(keyed) => {
                self.keyed.get_or_create(&OutcomeLabel { outcome: keyed.as_str() }).inc();
                return;
            }
            _ => return,
        };
        self.decisions.get_or_create(&DecisionLabels { scope: scope.to_string(), outcome }).inc();
    }
}
