//! What `/metrics` tells. No label holds an id, a key or anything else that a client chooses.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use admit::{Charge, Clock, Decision, MonotonicClock, TakeError, Timestamp};
use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// All metrics of the service. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    clock: MonotonicClock,
    requests: Family<Answer, Counter>,
    request_seconds: Histogram,
    requests_in_flight: Gauge,
    charges: Family<Outcome, Counter>,
    ingest_records: Counter,
    ingest_dropped_records: Counter,
    ingest_buffered_bytes: Gauge<u64, AtomicU64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    /// The route's template; empty where none matched.
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    scope: String,
    outcome: &'static str,
}

/// A request that runs. Dropped without an end, as when its client hangs up, it is not counted as answered.
#[derive(Debug)]
pub struct RequestTimer {
    metrics: Metrics,
    started: Timestamp,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("fleet");
        let inner = Inner {
            clock: MonotonicClock::start(),
            requests: Family::default(),
            request_seconds: Histogram::new(exponential_buckets(0.000_5, 2.0, 16)),
            requests_in_flight: Gauge::default(),
            charges: Family::default(),
            ingest_records: Counter::default(),
            ingest_dropped_records: Counter::default(),
            ingest_buffered_bytes: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register("requests", "Answered requests", inner.requests.clone());
        let help = "Time from a request's head to its response";
        registry.register_with_unit("request", help, Unit::Seconds, inner.request_seconds.clone());
        registry.register("requests_in_flight", "Requests that run", inner.requests_in_flight.clone());
        let help = "Charges on a rate budget: granted, refused (this one did not fit), withheld (another did not) or \
                    unavailable";
        registry.register("charges", help, inner.charges.clone());
        registry.register("ingest_records", "Telemetry records accepted", inner.ingest_records.clone());
        let help = "Telemetry records accepted and not written";
        registry.register("ingest_dropped_records", help, inner.ingest_dropped_records.clone());
        let help = "Telemetry that waits to be written";
        registry.register_with_unit(
            "ingest_buffered",
            help,
            Unit::Bytes,
            inner.ingest_buffered_bytes.clone(),
        );
        Self(Arc::new(Inner { registry, ..inner }))
    }
}

impl Metrics {
    /// The exposition text (OpenMetrics).
    ///
    /// # Errors
    /// If a metric cannot be written, which would be a mistake in this module.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.0.registry)?;
        Ok(text)
    }

    /// Counts a request in.
    pub fn start_request(&self) -> RequestTimer {
        self.0.requests_in_flight.inc();
        RequestTimer { metrics: self.clone(), started: self.0.clock.now() }
    }

    /// Counts a request as answered.
    pub fn end_request(&self, timer: RequestTimer, route: &str, status: StatusCode) {
        self.0.request_seconds.observe(self.0.clock.now().since(timer.started).as_secs_f64());
        let answer = Answer { route: route.to_owned(), status: status.as_u16() };
        self.0.requests.get_or_create(&answer).inc();
    }

    /// Counts what a take came to, charge by charge.
    pub fn count_take(&self, charges: &[Charge], taken: &Result<Decision, TakeError>) {
        for (i, charge) in charges.iter().enumerate() {
            let outcome = match taken {
                Err(_) => "unavailable",
                Ok(Decision::Granted(_)) => "granted",
                Ok(Decision::Refused(refusal)) if refusal.refused().any(|(refused, _)| refused == i) => {
                    "refused"
                }
                Ok(Decision::Refused(_)) => "withheld",
            };
            let outcome = Outcome { scope: charge.scope.to_string(), outcome };
            self.0.charges.get_or_create(&outcome).inc();
        }
    }

    /// Counts telemetry records that a client was told are accepted.
    pub fn count_ingested(&self, records: usize) {
        self.0.ingest_records.inc_by(records as u64);
    }

    /// Counts accepted records that will not be written.
    pub fn count_dropped(&self, records: usize) {
        self.0.ingest_dropped_records.inc_by(records as u64);
    }

    /// Tells how much telemetry waits to be written.
    pub fn set_buffered_bytes(&self, bytes: usize) {
        self.0.ingest_buffered_bytes.set(bytes as u64);
    }
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        self.metrics.0.requests_in_flight.dec();
    }
}
