//! The composition root: stores, router, worker and sweeps, behind one listener.

use std::net::SocketAddr;
use std::sync::Arc;

use admit::idempotency::{OnLapse, Terms};
use admit::{Rules, TimeSource, Unavailable};
use admit_listen::Limits as ListenLimits;
use admit_store::AnyStore;
use admit_store::maintenance::Maintenance;
use admit_store::postgres::{ConnectError, PostgresConfig, PostgresStore};
use admit_store::sqlite::{OpenError, SqliteStore};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, DatabaseUrl};
use crate::http::{App, router};
use crate::limits::{self, Limits, LimitsError};
use crate::metrics::Metrics;
use crate::storage::postgres::PostgresStorage;
use crate::storage::sqlite::SqliteStorage;
use crate::storage::{JOB_RETENTION, Storage};
use crate::trim::trim;
use crate::worker::Worker;

/// A running service.
#[derive(Debug)]
pub struct Service {
    address: SocketAddr,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The limits make no budgets.
    #[error("the MEM_RATE_LIMIT_… variables make no budgets")]
    Limits(#[from] LimitsError),
    /// The file cannot be opened.
    #[error("MEM_DATABASE_URL names a file that cannot be opened")]
    Sqlite(#[from] OpenError),
    /// The server cannot be reached, or its tables cannot be brought up to date.
    #[error("MEM_DATABASE_URL names a server that cannot be used")]
    Postgres(#[from] ConnectError),
    /// The tables of jobs and items cannot be brought up to date.
    #[error("the tables of jobs and items cannot be made in the store of MEM_DATABASE_URL")]
    Storage(#[from] Unavailable),
    /// The address cannot be listened on.
    #[error("MEM_LISTEN ({address}) cannot be listened on")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        #[source]
        cause: std::io::Error,
    },
}

impl Service {
    /// Opens the store, brings its tables up to date, and serves. Times are the store's unless `time` holds a clock.
    ///
    /// A store that cannot be opened is an error at once: whoever starts the service starts it again. One that goes away
    /// later is waited for.
    ///
    /// # Errors
    /// [`StartError`], whose text names the variable to look at.
    pub async fn start(config: Config, time: TimeSource) -> Result<Self, StartError> {
        let rules = limits::rules()?;
        let limits = Arc::new(Limits::new(&config.limits, &rules)?);
        let unlistened = |cause| StartError::Listen { address: config.listen, cause };
        let listener = TcpListener::bind(config.listen).await.map_err(unlistened)?;
        let address = listener.local_addr().map_err(unlistened)?;
        let (store, storage) = open(&config.database, rules).await?;

        let stop = CancellationToken::new();
        let (metrics, wake) = (Metrics::default(), Arc::new(Notify::new()));
        // A run commits together with its record or not at all, so one that let its lease lapse may run again.
        let terms = Terms {
            lease: config.idempotency_lease,
            ttl: config.idempotency_ttl,
            on_lapse: OnLapse::RunAgain,
        };
        let worker = Worker {
            storage: storage.clone(),
            time: time.clone(),
            lease: config.job_lease,
            metrics: metrics.clone(),
            wake: wake.clone(),
        };
        let retention = JOB_RETENTION.max(config.idempotency_ttl);
        let background = [
            tokio::spawn(worker.run(stop.clone())),
            tokio::spawn(trim(storage.clone(), time.clone(), retention, stop.clone())),
            tokio::spawn(
                Maintenance::new(store.clone()).time(time.clone()).run(stop.clone().cancelled_owned()),
            ),
        ];
        let keys = config.api_keys;
        let (router, idle) = router(App { storage, store, keys, limits, terms, time, metrics, wake });
        let shutdown = stop.clone();
        let running = tokio::spawn(async move {
            admit_listen::serve(listener, router, ListenLimits::default(), shutdown).await;
            idle.await; // Ingests whose clients have gone are finished too.
            for task in background {
                let _ = task.await; // One that panicked has said so.
            }
        });
        Ok(Self { address, stop, running })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more requests, finishes those that run, and ends.
    pub async fn stop(self) {
        self.stop.cancel();
        let _ = self.running.await; // If it panicked, it has ended too.
    }
}

/// The store of budgets and records, and that of jobs and items: two sets of tables in one database, so that a job and the
/// record of its answer are committed together.
async fn open(database: &DatabaseUrl, rules: Rules) -> Result<(AnyStore, Storage), StartError> {
    Ok(match database {
        DatabaseUrl::Sqlite(path) => {
            let store = SqliteStore::open(path, rules).await?;
            (AnyStore::Sqlite(store.clone()), Storage::Sqlite(SqliteStorage::open(path, store).await?))
        }
        DatabaseUrl::Postgres(url) => {
            let store = PostgresStore::connect(PostgresConfig::new(url), rules).await?;
            (
                AnyStore::Postgres(store.clone()),
                Storage::Postgres(PostgresStorage::connect(url, store).await?),
            )
        }
    })
}
