//! A memory API of a test's own: a store, the service on a free port, and a clock in the test's hand.
#![allow(dead_code, unreachable_pub)] // Each test file uses a part.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use admit::{ManualClock, TimeSource, Timestamp};
use admit_store::AnyStore;
use admit_testbed::Postgres;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use memory_api::Service;
use memory_api::config::Config;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub const ACME: &str = "key-of-acme";
pub const ACME_2: &str = "second-key-of-acme";
pub const BETA: &str = "key-of-beta";
pub const GAMMA: &str = "key-of-gamma";
const KEYS: &str = "acme=key-of-acme,acme=second-key-of-acme,beta=key-of-beta,gamma=key-of-gamma";

/// When tests begin: 2026-01-01T00:00:00Z.
const START_MICROS: i64 = 1_767_225_600_000_000;

/// Makes a test of each async function: one on SQLite and one on PostgreSQL.
#[macro_export]
macro_rules! on_both_stores {
    ($($(#[$doc:meta])* async fn $name:ident($memory:ident) $body:block)*) => {$(
        $(#[$doc])*
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            async fn test($memory: service::Memory) $body

            #[tokio::test]
            async fn sqlite() {
                test(service::Memory::start(service::Place::sqlite(), &[]).await).await;
            }

            #[tokio::test]
            async fn postgres() {
                test(service::Memory::start(service::Place::postgres(), &[]).await).await;
            }
        }
    )*};
}

/// Where a store is. It lasts as long as this does.
pub struct Place {
    pub postgres: Option<Postgres>,
    pub directory: TempDir,
}

impl Place {
    pub fn sqlite() -> Self {
        Self { postgres: None, directory: tempfile::tempdir().unwrap() }
    }

    pub fn postgres() -> Self {
        Self { postgres: Some(Postgres::fast().unwrap()), ..Self::sqlite() }
    }

    pub fn database_url(&self) -> String {
        match &self.postgres {
            Some(postgres) => postgres.url(),
            None => format!("sqlite:{}", self.directory.path().join("memory.db").display()),
        }
    }
}

/// A service that runs.
pub struct Memory {
    pub place: Place,
    pub clock: ManualClock,
    service: Option<Service>,
    pub address: SocketAddr,
}

impl Memory {
    /// The service, with the default limits unless variables are set.
    pub async fn start(place: Place, set: &[(&str, &str)]) -> Self {
        let clock = ManualClock::at(Timestamp::from_unix_micros(START_MICROS).unwrap());
        let service = Self::service(&place, &clock, set).await;
        Self { place, clock, address: service.address(), service: Some(service) }
    }

    async fn service(place: &Place, clock: &ManualClock, set: &[(&str, &str)]) -> Service {
        let url = place.database_url();
        let look_up = |name: &str| {
            let found = set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
            found.or_else(|| match name {
                "MEM_LISTEN" => Some("127.0.0.1:0".to_owned()),
                "MEM_DATABASE_URL" => Some(url.clone()),
                "MEM_API_KEYS" => Some(KEYS.to_owned()),
                _ => None,
            })
        };
        let config = Config::read(&look_up).unwrap();
        Service::start(config, TimeSource::Clock(Arc::new(clock.clone()))).await.unwrap()
    }

    /// Stops the service and starts another on the same store.
    pub async fn restart(&mut self, set: &[(&str, &str)]) {
        self.stop().await;
        let service = Self::service(&self.place, &self.clock, set).await;
        self.address = service.address();
        self.service = Some(service);
    }

    pub async fn stop(&mut self) {
        if let Some(service) = self.service.take() {
            service.stop().await;
        }
    }

    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    pub fn call(&self, method: Method, path: &str) -> Call {
        Call::new(self.address, method, path)
    }

    pub fn get(&self, path: &str, key: &str) -> Call {
        self.call(Method::GET, path).header("x-api-key", key)
    }

    pub fn ingest(&self, key: &str, body: impl Into<Bytes>) -> Call {
        let call = self.call(Method::POST, "/memory/ingest").header("x-api-key", key);
        Call { body: body.into(), ..call.header("content-type", "application/json") }
    }

    /// A second handle on the store of budgets and records.
    pub async fn store(&self) -> AnyStore {
        AnyStore::open(&self.place.database_url(), memory_api::limits::rules().unwrap()).await.unwrap()
    }

    /// How many rows a table has: `rate_budgets` and `idempotency_records` are those of the store, others the service's.
    pub fn rows(&self, table: &str) -> i64 {
        let Some(postgres) = &self.place.postgres else {
            let file = rusqlite::Connection::open(self.place.directory.path().join("memory.db")).unwrap();
            return file.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
        };
        let schema = match table {
            "rate_budgets" | "idempotency_records" => "admit",
            _ => "memory",
        };
        postgres.psql(&format!("SELECT count(*) FROM {schema}.{table}")).unwrap().parse().unwrap()
    }

    /// A batch of one note.
    pub fn ingest_id(&self, key: &str, id: &str) -> Call {
        self.ingest(key, batch(id, "a note").to_string())
    }

    /// Waits until the job is done.
    pub async fn done(&self, key: &str, job_id: &str) {
        let work = async {
            let mut tick = tokio::time::interval(Duration::from_millis(20));
            loop {
                tick.tick().await;
                self.advance(Duration::from_secs(1)); // For the burst of the question.
                let job = self.get(&format!("/memory/jobs/{job_id}"), key).send().await;
                if job.is(200).json()["status"] == "done" {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(30), work).await.expect("the job is done");
    }
}

/// Sends these very bytes, and returns all that comes back until the server closes or `enough` was read.
pub async fn raw(address: SocketAddr, bytes: &[u8], enough: impl Fn(&str) -> bool) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(bytes).await;
    let mut read = Vec::new();
    while !enough(&String::from_utf8_lossy(&read)) {
        match stream.read_buf(&mut read).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    String::from_utf8_lossy(&read).into_owned()
}

pub fn batch(id: &str, text: &str) -> Value {
    json!({"ingest_id": id, "project": "garden", "items": [{"kind": "note", "text": text}]})
}

/// A request that is being put together.
pub struct Call {
    address: SocketAddr,
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

/// An answer, read whole.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Call {
    pub fn new(address: SocketAddr, method: Method, path: &str) -> Self {
        Self { address, method, path: path.into(), headers: HeaderMap::new(), body: Bytes::new() }
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.insert(name, value.parse().unwrap());
        self
    }

    pub fn body(self, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..self }
    }

    /// Sets the value of a header to bytes that need not be text.
    pub fn header_bytes(mut self, name: &'static str, value: &[u8]) -> Self {
        self.headers.insert(name, HeaderValue::from_bytes(value).unwrap());
        self
    }

    pub async fn send(self) -> Reply {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut request = Request::new(Full::new(self.body));
        *request.method_mut() = self.method;
        *request.uri_mut() = self.path.parse().unwrap();
        *request.headers_mut() = self.headers;
        request.headers_mut().insert("host", "memory.test".parse().unwrap());
        let (head, body) = sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        connection.abort();
        Reply { status: head.status, headers: head.headers, body }
    }
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    #[track_caller]
    pub fn is(&self, status: u16) -> &Self {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.body));
        self
    }

    /// Checks that this is a problem document whose detail says `detail`.
    #[track_caller]
    pub fn is_problem(&self, status: u16, detail: &str) -> Value {
        self.is(status);
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem = self.json();
        assert_eq!(problem["status"], status);
        assert!(problem["detail"].as_str().unwrap().contains(detail), "{problem} does not say {detail:?}");
        problem
    }

    pub fn job_id(&self) -> String {
        self.json()["job_id"].as_str().unwrap().to_owned()
    }
}
