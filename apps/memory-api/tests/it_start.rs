//! The program itself: how it starts, why it does not, what it logs, and how it stops.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod service;

use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::time::Duration;

use memory_api::config::SETTINGS;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use service::{Call, batch};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStderr, Command};

const DEVELOPMENT_KEY: &str = "development-key";

/// The program in a directory of its own, on a free port and with no variable of the test's environment.
fn program(directory: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memory-api"));
    command.current_dir(directory.path()).env_clear().kill_on_drop(true).stdin(Stdio::null());
    command.env("MEM_LISTEN", "127.0.0.1:0");
    command
}

/// What it says when it does not start.
async fn fails(command: &mut Command) -> String {
    let run = tokio::time::timeout(Duration::from_secs(60), command.output());
    let Output { status, stderr, .. } = run.await.expect("it does not start").unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    said
}

/// A program that runs, and its log.
struct Running {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
    seen: Vec<Value>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.env("MEM_LOG_FORMAT", "json").stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, log, seen: Vec::new() }
    }

    /// The next line of the log with this message.
    async fn line(&mut self, message: &str) -> Value {
        while let Some(line) = self.log.next_line().await.unwrap() {
            let line: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not JSON: {line}"));
            self.seen.push(line.clone());
            if line["fields"]["message"].as_str().unwrap_or_default().contains(message) {
                return line;
            }
        }
        panic!("no line says {message:?} in {:#?}", self.seen);
    }

    async fn address(&mut self) -> SocketAddr {
        self.line("listening").await["fields"]["address"].as_str().unwrap().parse().unwrap()
    }

    /// Stops it by a signal, demands that it ends well, and returns its whole log.
    async fn stop(mut self, signal: Signal) -> String {
        kill_process(Pid::from_raw(self.child.id().unwrap() as i32).unwrap(), signal).unwrap();
        self.line("stopped").await;
        let ended = tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await;
        assert!(ended.expect("it ends").unwrap().success());
        self.seen.iter().map(|line| format!("{line}\n")).collect()
    }
}

#[tokio::test]
async fn a_wrong_variable_stops_the_start_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    for (name, value, takes) in [
        ("MEM_LISTEN", "localhost", "it takes an IP address and a port"),
        ("MEM_LISTEN", taken.as_str(), "cannot be listened on"),
        ("MEM_DATABASE_URL", "redis://hunter2@x", "it takes sqlite:PATH, or postgres://"),
        ("MEM_DATABASE_URL", "sqlite::memory:", "would be lost"),
        ("MEM_DATABASE_URL", "sqlite:no/such/directory/memory.db", "names a file that cannot be opened"),
        ("MEM_DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/x", "names a server that cannot be used"),
        ("MEM_DATABASE_URL", "postgres://u:hunter2@127.0.0.1:x/x", "the PostgreSQL URL is malformed"),
        ("MEM_API_KEYS", "hunter2", "it takes TENANT=KEY pairs"),
        ("MEM_API_KEYS", "a=hunter2,b=hunter2", "entry 2 repeats the key of entry 1"),
        ("MEM_API_KEYS", "", "entry 1 is empty"),
        ("MEM_RATE_LIMIT_INGEST", "0", "it takes a whole number from 1 to 1000000000, or unlimited"),
        ("MEM_RATE_LIMIT_QUERY", "many", "it takes a whole number"),
        ("MEM_RATE_LIMIT_PROJECTS", "-1", "it takes a whole number"),
        ("MEM_RATE_LIMIT_SKILLS", "1.5", "it takes a whole number"),
        ("MEM_RATE_LIMIT_BURST", "unlimited", "it takes a whole number from 1 to 1000000"),
        ("MEM_IDEMPOTENCY_TTL_SECS", "24h", "it takes a whole number of seconds"),
        ("MEM_IDEMPOTENCY_LEASE_SECS", "0", "it takes a whole number of seconds"),
        ("MEM_JOB_LEASE_SECS", "", "it takes a whole number of seconds"),
        ("MEM_LOG_FORMAT", "xml", "it takes text or json"),
        ("MEM_LOG", "memory_api=loud", "it takes a tracing filter"),
    ] {
        let said = fails(program(&directory).env(name, value)).await;
        assert!(said.starts_with("memory-api does not start: ") && said.contains(name), "{said}");
        assert!(said.contains(takes), "{name}={value}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    // All at once.
    let mut command = program(&directory);
    let said = fails(command.env("MEM_RATE_LIMIT_BURST", "x").env("MEM_JOB_LEASE_SECS", "y")).await;
    assert!(said.contains("MEM_RATE_LIMIT_BURST") && said.contains("MEM_JOB_LEASE_SECS"), "{said}");
}

#[tokio::test]
async fn the_development_key_is_for_loopback_alone() {
    let directory = tempfile::tempdir().unwrap();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        let said = fails(program(&directory).env("MEM_LISTEN", address)).await;
        assert!(
            said.contains("MEM_API_KEYS: not set, and ") && said.contains("not a loopback address"),
            "{said}"
        );
    }

    let mut running = Running::start(&mut program(&directory));
    let address = running.address().await;
    let said = running.line("development key").await;
    assert_eq!((&said["level"], &said["fields"]["key"]), (&"WARN".into(), &DEVELOPMENT_KEY.into()));
    let query = |key| Call::new(address, http::Method::GET, "/memory/query").header("x-api-key", key);
    query(DEVELOPMENT_KEY).send().await.is(200);
    query("nobody").send().await.is(401);
    running.stop(Signal::INT).await;
    assert!(directory.path().join("memory.db").exists(), "the default store is a file here");

    // Where keys are set it is a key like any other, and unknown.
    let mut running = Running::start(program(&directory).env("MEM_API_KEYS", "acme=key-of-acme"));
    let address = running.address().await;
    let query = |key| Call::new(address, http::Method::GET, "/memory/query").header("x-api-key", key);
    query("key-of-acme").send().await.is(200);
    query(DEVELOPMENT_KEY).send().await.is(401);
    let log = running.stop(Signal::TERM).await;
    assert!(!log.contains("development"), "{log}");
}

#[tokio::test]
async fn the_log_tells_of_requests_by_their_ids_and_never_a_key() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = program(&directory);
    command.env("MEM_API_KEYS", "acme=key-of-acme").env("MEM_LOG", "trace").env("MEM_RATE_LIMIT_BRUST", "5");
    let mut running = Running::start(&mut command);
    let misspelt = running.line("there is no such variable").await;
    assert_eq!(misspelt["fields"]["name"], "MEM_RATE_LIMIT_BRUST");
    let address = running.address().await;

    let call = Call::new(address, http::Method::POST, "/memory/ingest").header("x-api-key", "key-of-acme");
    let call =
        call.header("x-correlation-id", "id-of-a-request").body(batch("nightly", "a text").to_string());
    call.send().await.is(202);
    let answered = running.line("answered").await;
    assert_eq!(answered["span"]["correlation_id"], "id-of-a-request", "{answered}");
    assert_eq!(answered["span"]["route"], "/memory/ingest");
    assert_eq!((&answered["fields"]["status"], &answered["fields"]["tenant"]), (&202.into(), &"acme".into()));
    for (name, value) in [("authorization", "Bearer wrong-key"), ("apikey", "wrong-key")] {
        let call = Call::new(address, http::Method::GET, "/memory/query").header(name, value);
        call.send().await.is(401);
        assert_eq!(running.line("answered").await["fields"]["status"], 401);
    }
    let log = running.stop(Signal::TERM).await;
    for secret in ["key-of-acme", "wrong-key"] {
        assert!(!log.contains(secret), "{secret} in the log:\n{log}");
    }
}

/// A client that never sends the rest of its request holds the end up until the time limit of its body, and no longer.
#[tokio::test]
async fn a_client_that_falls_silent_does_not_hold_up_the_stop_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = Running::start(&mut program(&directory));
    let mut stream = TcpStream::connect(running.address().await).await.unwrap();
    let head = format!(
        "POST /memory/ingest HTTP/1.1\r\nhost: x\r\nx-api-key: {DEVELOPMENT_KEY}\r\ncontent-length: 100\r\n\
         expect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut asked = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut asked).await.unwrap(); // The request runs.
    running.stop(Signal::TERM).await;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 408 ") && reply.contains("body_too_slow"), "{reply}");
}

#[tokio::test]
async fn help_lists_every_variable() {
    let directory = tempfile::tempdir().unwrap();
    for flag in ["--help", "-h"] {
        let output = program(&directory).arg(flag).output().await.unwrap();
        assert!(output.status.success());
        let help = String::from_utf8(output.stdout).unwrap();
        for setting in SETTINGS {
            let entry = format!(
                "\n{}\n    {}\n    Takes {}.\n    Default: {}.\n",
                setting.name, setting.about, setting.takes, setting.default
            );
            assert!(help.contains(&entry), "{help} does not have {entry}");
        }
    }
    let version = program(&directory).arg("--version").output().await.unwrap();
    assert_eq!(version.stdout, concat!("memory-api ", env!("CARGO_PKG_VERSION"), "\n").as_bytes());
    let wrong = program(&directory).arg("--port").output().await.unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("memory-api --help"));
}
