//! The memory API as a program of its own, that a test starts, kills and asks.
#![allow(dead_code, unreachable_pub)] // Each test file uses a part.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use admit_testbed::Postgres;
use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;

pub const KEY: &str = "key-of-acme";

/// Room enough that no limit shapes a test that is not about limits, and leases that a test can wait out.
pub const ROOMY: [(&str, &str); 4] = [
    ("MEM_RATE_LIMIT_INGEST", "1000000000"),
    ("MEM_RATE_LIMIT_BURST", "1000000"),
    ("MEM_IDEMPOTENCY_LEASE_SECS", "1"),
    ("MEM_JOB_LEASE_SECS", "1"),
];

/// A store that flushes what it commits, as in production.
pub enum Place {
    Sqlite(TempDir),
    Postgres(Postgres),
}

impl Place {
    pub fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    pub fn postgres() -> Self {
        Self::Postgres(Postgres::start().unwrap())
    }

    fn database_url(&self) -> String {
        match self {
            Self::Sqlite(directory) => format!("sqlite:{}", directory.path().join("memory.db").display()),
            Self::Postgres(postgres) => postgres.url(),
        }
    }

    /// The jobs of the store: ingest id, job id and status.
    pub fn jobs(&self) -> Vec<(String, String, String)> {
        let rows = match self {
            Self::Sqlite(directory) => {
                let file = rusqlite::Connection::open(directory.path().join("memory.db")).unwrap();
                let jobs = "SELECT ingest_id || '|' || lower(hex(id)) || '|' || status FROM jobs";
                let mut jobs = file.prepare(jobs).unwrap();
                let rows = jobs.query_map([], |row| row.get::<_, String>(0)).unwrap();
                rows.map(Result::unwrap).collect::<Vec<_>>()
            }
            Self::Postgres(postgres) => {
                let jobs =
                    "SELECT ingest_id || '|' || replace(id::text, '-', '') || '|' || status FROM memory.jobs";
                postgres.psql(jobs).unwrap().lines().map(str::to_owned).collect()
            }
        };
        let three = |row: String| {
            let mut columns = row.split('|').map(str::to_owned);
            (columns.next().unwrap(), columns.next().unwrap(), columns.next().unwrap())
        };
        rows.into_iter().map(three).collect()
    }

    /// How many items are searchable.
    pub fn items(&self) -> usize {
        match self {
            Self::Sqlite(directory) => {
                let file = rusqlite::Connection::open(directory.path().join("memory.db")).unwrap();
                let count: i64 = file.query_row("SELECT count(*) FROM items", [], |row| row.get(0)).unwrap();
                count as usize
            }
            Self::Postgres(postgres) => {
                postgres.psql("SELECT count(*) FROM memory.items").unwrap().parse().unwrap()
            }
        }
    }
}

/// A process. It is killed when this is dropped.
pub struct Program {
    pub address: SocketAddr,
    log: watch::Receiver<String>,
    child: Child,
}

impl Program {
    /// Starts the program on a free port and waits until it listens.
    pub async fn start(place: &Place, set: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memory-api"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MEM_")) {
            command.env_remove(name);
        }
        let mut child = command
            .env("MEM_LISTEN", "127.0.0.1:0")
            .env("MEM_DATABASE_URL", place.database_url())
            .env("MEM_API_KEYS", format!("acme={KEY}"))
            .env("MEM_LOG_FORMAT", "json")
            .envs(set.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut seen = String::new();
        let address = loop {
            let line = lines.next_line().await.unwrap().unwrap_or_else(|| panic!("it did not start: {seen}"));
            let fields = serde_json::from_str::<Value>(&line).unwrap_or_default()["fields"].clone();
            if fields["message"] == "listening" {
                break fields["address"].as_str().unwrap().parse().unwrap();
            }
            seen += &line;
        };
        let (logged, log) = watch::channel(String::new());
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                logged.send_modify(|log| *log += &(line + "\n"));
            }
        });
        Self { address, log, child }
    }

    /// Waits until a line of the log holds all of `parts`.
    pub async fn logs(&self, parts: &[&str]) {
        let mut log = self.log.clone();
        let holds = |log: &String| log.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        let logged = tokio::time::timeout(Duration::from_secs(10), log.wait_for(holds)).await;
        assert!(matches!(logged, Ok(Ok(_))), "no line holds {parts:?}: {}", *self.log.borrow());
    }

    /// Kills it after a while, at which it must still run.
    pub async fn kill_after(mut self, while_: Duration) {
        assert!(tokio::time::timeout(while_, self.child.wait()).await.is_err(), "it ended by itself");
        self.child.kill().await.unwrap();
    }

    /// Asks it to stop, demands that it does so well, and returns what it logged since it listened.
    pub async fn stop_with_log(self) -> String {
        let mut log = self.log.clone();
        self.stop().await;
        let _ = log.wait_for(|_| false).await; // Until the last line was read.
        log.borrow().clone()
    }

    /// Asks it to stop, and demands that it does so well.
    pub async fn stop(mut self) {
        let pid = Pid::from_raw(self.child.id().unwrap() as i32).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await;
        assert!(ended.expect("it stops in time").unwrap().success());
    }
}

/// An answer, read whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// One request on a connection of its own; an error if there is no whole answer.
pub async fn ask(address: SocketAddr, method: Method, path: &str, body: String) -> anyhow::Result<Reply> {
    let work = async {
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = Request::builder().method(method).uri(path).header("host", "memory.test");
        let request = request.header("x-api-key", KEY).body(Full::new(Bytes::from(body)))?;
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        connection.abort();
        Ok(Reply { status: head.status.as_u16(), headers: head.headers, body })
    };
    tokio::time::timeout(Duration::from_secs(40), work).await?
}

/// A batch of two items.
pub fn batch(id: &str) -> String {
    let items = [json!({"kind": "note", "text": format!("{id} one")}), json!({"kind": "skill", "text": id})];
    json!({"ingest_id": id, "project": "garden", "items": items}).to_string()
}

pub async fn ingest(address: SocketAddr, id: &str) -> anyhow::Result<Reply> {
    ask(address, Method::POST, "/memory/ingest", batch(id)).await
}

/// Demands that the jobs are those of the answers, no more and no fewer, each answer the job's, and waits until all are
/// done and every item is searchable once.
pub async fn demand_exactly(place: &Place, answers: &BTreeMap<String, Bytes>) {
    let jobs = place.jobs();
    let ids: BTreeMap<&str, &str> = jobs.iter().map(|(id, job, _)| (id.as_str(), job.as_str())).collect();
    assert_eq!(jobs.len(), ids.len(), "an id has two jobs");
    assert_eq!(ids.len(), answers.len(), "jobs for {} ids, {} were answered", ids.len(), answers.len());
    for (id, answer) in answers {
        let answer: Value = serde_json::from_slice(answer).unwrap();
        let job = answer["job_id"].as_str().unwrap().replace('-', "");
        assert_eq!(ids.get(id.as_str()), Some(&job.as_str()), "the answer for {id} is not its job's");
    }
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let done = async {
        while place.jobs().iter().any(|(_, _, status)| status != "done") {
            tick.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), done).await.expect("all jobs are done");
    assert_eq!(place.items(), 2 * answers.len(), "every item is searchable, once");
}

/// A sequence of numbers that looks random, from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
