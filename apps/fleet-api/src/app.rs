//! The composition root: the three contexts on one store, behind one listener.

use std::sync::Arc;
use std::time::Duration;

use admit::{BudgetStore, Clock, IdempotencyStore, SystemClock, TimeSource};
use axum::Router;
use axum::response::IntoResponse;
use http::StatusCode;
use tokio_util::sync::CancellationToken;

use crate::access::persistence::{IssuanceBudgets, StoreIssuanceLimiter, StoreLedger};
use crate::access::{self, Issuer};
use crate::fleet_file::Description;
use crate::http::correlation::correlate;
use crate::http::problem::Problem;
use crate::metrics::Metrics;
use crate::observability::persistence::StoreIngestLimiter;
use crate::observability::{self, Buffer, TelemetrySink};
use crate::operations;
use crate::secrets;
use crate::secrets::persistence::StoreReadLimiter;
use crate::settings::Settings;

/// How long the consumer may go on writing after the last request, before what is left is given up.
const DRAIN_TIME_LIMIT: Duration = Duration::from_secs(10);

/// The service, without a listener.
#[derive(Debug)]
pub struct App {
    /// Answers requests.
    pub router: Router,
    /// Its metrics.
    pub metrics: Metrics,
    drain: Drain,
}

/// Writes out what is in the buffer. To be finished after the router and all its clones are dropped.
#[derive(Debug)]
pub struct Drain {
    consuming: tokio::task::JoinHandle<()>,
    give_up: CancellationToken,
}

impl App {
    /// Puts the service together. Its clock is the store's, and the machine's for what no store decides, unless `time`
    /// holds another.
    pub fn new<S: BudgetStore + IdempotencyStore>(
        settings: &Settings,
        description: Description,
        store: S,
        sink: impl TelemetrySink,
        time: TimeSource,
    ) -> Self {
        let metrics = Metrics::default();
        let clock: Arc<dyn Clock> = match &time {
            TimeSource::Store => Arc::new(SystemClock),
            TimeSource::Clock(clock) => clock.clone(),
        };
        let Description { fleet, vault, registry, issuance, signer } = description;
        let fleet = Arc::new(fleet);
        let limits = settings.ingest_limits;
        let (buffer, consumer) =
            Buffer::new(limits.max_buffered_records, limits.max_buffered_bytes, metrics.clone());
        let give_up = CancellationToken::new();
        let consuming = tokio::spawn(consumer.run(sink, give_up.clone()));

        let reads = StoreReadLimiter::new(store.clone(), time.clone(), settings.reads, metrics.clone());
        let ingest = StoreIngestLimiter::new(store.clone(), time.clone(), settings.ingest, metrics.clone());
        let budgets = IssuanceBudgets { default: settings.issuance, by_domain: issuance };
        let issuance = StoreIssuanceLimiter::new(store.clone(), time.clone(), budgets, metrics.clone());
        let ledger = StoreLedger::new(store.clone(), time.clone());
        tracing::info!(
            kid = signer.key_id(),
            x = signer.public_key(),
            "session tokens are signed with this Ed25519 key"
        );
        let issuer = Issuer::new(issuance, ledger, signer, clock.clone());

        let router = Router::new()
            .merge(secrets::http::router(fleet.clone(), vault, reads))
            .merge(observability::http::router(fleet.clone(), ingest, limits, buffer, clock, metrics.clone()))
            .merge(access::http::router(fleet, registry, issuer))
            .merge(operations::router(store, time, settings.reads, metrics.clone()))
            .fallback(async || Problem::not_found("not_found", "there is nothing at this path"))
            .method_not_allowed_fallback(async || {
                let detail = "the path does not take this method";
                Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail).into_response()
            })
            .layer(axum::middleware::from_fn_with_state(metrics.clone(), correlate));
        Self { router, metrics, drain: Drain { consuming, give_up } }
    }

    /// The router, and what to finish after it.
    pub fn into_parts(self) -> (Router, Drain) {
        (self.router, self.drain)
    }
}

impl Drain {
    /// Waits until all telemetry is written, up to a bound.
    pub async fn finish(mut self) {
        if tokio::time::timeout(DRAIN_TIME_LIMIT, &mut self.consuming).await.is_err() {
            self.give_up.cancel();
            let _ = self.consuming.await; // It says what is lost.
        }
    }
}
