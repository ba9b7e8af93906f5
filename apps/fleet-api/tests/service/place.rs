//! A store of a test's own, and fleets that run on it. The fleet is that of the example file.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use admit::{ManualClock, TimeSource, Timestamp};
use admit_listen::Limits;
use admit_store::AnyStore;
use admit_testbed::Postgres;
use fleet_api::app::{App, Drain};
use fleet_api::fleet_file::Description;
use fleet_api::observability::TelemetrySink;
use fleet_api::settings::Settings;
use fleet_api::storage;
use http::Method;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::Call;

pub(crate) const DOMAIN: &str = "0b9e1c52-6a4f-4d3c-9f0e-3a51d2c7e001";
pub(crate) const NODE_1: &str = "5d3c2a10-8e4b-4f6a-b7d9-1c0e9f8a0001";
pub(crate) const NODE_2: &str = "5d3c2a10-8e4b-4f6a-b7d9-1c0e9f8a0002";
pub(crate) const NODE_3: &str = "5d3c2a10-8e4b-4f6a-b7d9-1c0e9f8a0003";
pub(crate) const KEY_1: &str = "development-key-of-the-node-one1";
pub(crate) const KEY_1_REVOKED: &str = "development-key-that-was-revoked";
pub(crate) const KEY_2: &str = "development-key-of-the-node-two2";
pub(crate) const KEY_3: &str = "development-key-other-domain-001";
pub(crate) const TOKEN: &str = "development-token-of-an-operator";
pub(crate) const TOKEN_2: &str = "development-token-of-another-one";
pub(crate) const IDENTITY: &str = "3c4d5e6f-7a8b-4c9d-8e0f-1a2b3c4d0001";
pub(crate) const PROJECT: &str = "7f1a4c9e-2b3d-4e5f-8a6b-9c0d1e2f0001";
pub(crate) const PROJECT_2: &str = "7f1a4c9e-2b3d-4e5f-8a6b-9c0d1e2f0002";
pub(crate) const RESOURCE: &str = "9a8b7c6d-5e4f-4a3b-8c2d-1e0f9a8b0001";
pub(crate) const RESOURCE_2: &str = "9a8b7c6d-5e4f-4a3b-8c2d-1e0f9a8b0002";

/// When tests begin: 2026-01-01T00:00:00Z.
pub(crate) const START_MICROS: i64 = 1_767_225_600_000_000;

/// Where a store is.
pub(crate) struct Place {
    pub(crate) postgres: Option<Postgres>,
    pub(crate) directory: TempDir,
    pub(crate) clock: ManualClock,
}

/// A fleet API that runs.
pub(crate) struct Fleet {
    pub(crate) address: SocketAddr,
    pub(crate) store: AnyStore,
    pub(crate) sink: Sink,
    /// The public half of the signing key.
    pub(crate) public_key: String,
    serving: JoinHandle<()>,
    drain: Drain,
    shutdown: CancellationToken,
}

/// Telemetry in memory; or a disk that is full.
#[derive(Clone, Default)]
pub(crate) struct Sink {
    written: Arc<Mutex<Vec<u8>>>,
    pub(crate) broken: Arc<AtomicBool>,
}

impl TelemetrySink for Sink {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::Error::other("the disk is full"));
        }
        self.written.lock().unwrap().extend_from_slice(lines);
        Ok(())
    }
}

impl Sink {
    pub(crate) fn lines(&self) -> Vec<serde_json::Value> {
        let written = self.written.lock().unwrap();
        let lines = written.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        Self::new(None)
    }

    pub(crate) fn postgres() -> Self {
        Self::new(Some(Postgres::fast().unwrap()))
    }

    fn new(postgres: Option<Postgres>) -> Self {
        let start = Timestamp::from_unix_micros(START_MICROS).unwrap();
        Self { postgres, directory: tempfile::tempdir().unwrap(), clock: ManualClock::at(start) }
    }

    pub(crate) fn database_url(&self) -> String {
        match &self.postgres {
            Some(postgres) => postgres.url(),
            None => format!("sqlite:{}", self.directory.path().join("fleet.db").display()),
        }
    }

    pub(crate) fn advance(&self, micros: u64) {
        self.clock.advance(Duration::from_micros(micros));
    }

    /// A fleet with the shipped settings.
    pub(crate) async fn start(&self) -> Fleet {
        self.start_with(&[]).await
    }

    /// A fleet with some variables set.
    pub(crate) async fn start_with(&self, set: &[(&str, &str)]) -> Fleet {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fleet.example.toml");
        let url = self.database_url();
        let settings = Settings::read(|name| match name {
            "FLEET_FILE" => Some(file.display().to_string()),
            "FLEET_DATABASE_URL" => Some(url.clone()),
            _ => set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned()),
        });
        let settings = settings.unwrap();
        let description = Description::read(&settings.file).unwrap();
        let public_key = description.signer.public_key();
        let store = storage::open(&settings.database_url).await.unwrap();
        let (sink, time) = (Sink::default(), TimeSource::Clock(Arc::new(self.clock.clone())));
        let (router, drain) =
            App::new(&settings, description, store.clone(), sink.clone(), time).into_parts();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let serving =
            tokio::spawn(admit_listen::serve(listener, router, Limits::default(), shutdown.clone()));
        Fleet { address, store, sink, public_key, serving, drain, shutdown }
    }
}

impl Fleet {
    pub(crate) fn get(&self, path: impl Into<String>) -> Call {
        Call::new(self.address, Method::GET, path)
    }

    pub(crate) fn post(&self, path: impl Into<String>) -> Call {
        Call::new(self.address, Method::POST, path)
    }

    /// A read of the newest version of a secret that both nodes of the first domain may read.
    pub(crate) fn read(&self, node: &str, key: &str) -> Call {
        self.get(format!("/v1/nodes/{node}/secrets/database-password")).bearer(key)
    }

    /// A batch, with the headers that every batch has.
    pub(crate) fn ingest(&self, node: &str, key: &str, what: &str) -> Call {
        let call = self.post(format!("/v1/nodes/{node}/{what}")).bearer(key);
        call.header("x-plexsphere-sent-at", "2026-01-01T00:00:00.123456789Z")
    }

    /// Stops as a signal would, and returns when all is written.
    pub(crate) async fn stop(self) -> Sink {
        self.shutdown.cancel();
        self.serving.await.unwrap();
        self.drain.finish().await;
        self.sink
    }
}
