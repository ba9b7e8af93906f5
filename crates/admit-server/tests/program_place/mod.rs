//! The `admit` program in a directory of its own.
#![allow(dead_code)] // Each test file uses some of it.

use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::time::Duration;

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

pub(crate) fn admit(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_admit"));
    command.current_dir(directory.path()).env_clear().args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    command
}

pub(crate) async fn run(directory: &TempDir, arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = admit(directory, arguments).output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// What a command that goes well prints as JSON.
pub(crate) async fn json(directory: &TempDir, arguments: &[&str]) -> Value {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
    let (code, said, error) = run(directory, &arguments).await;
    assert_eq!(code, 0, "{arguments:?}: {error}");
    serde_json::from_str(&said).unwrap_or_else(|_| panic!("{arguments:?}: {said}"))
}

/// A program that serves, and where.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Serving {
    pub(crate) async fn start(directory: &TempDir, arguments: &[&str]) -> Self {
        Self::start_with(directory, arguments, &[]).await
    }

    /// With variables of the environment.
    pub(crate) async fn start_with(
        directory: &TempDir,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let free = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let arguments: Vec<&str> =
            std::iter::once("serve").chain(free).chain(arguments.iter().copied()).collect();
        let mut command = admit(directory, &arguments);
        let mut child = command
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut seen = String::new();
        let fields = loop {
            let line = lines.next_line().await.unwrap().unwrap_or_else(|| panic!("it did not start: {seen}"));
            let fields = serde_json::from_str::<Value>(&line).unwrap_or_default()["fields"].clone();
            if fields["message"] == "listening" {
                break fields;
            }
            seen += &line;
        };
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} }); // It must be able to log.
        let address = |name: &str| fields[name].as_str().unwrap().parse().unwrap();
        Self { child, address: address("address"), admin: address("admin") }
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        send(Request::get(format!("http://{}{path}", self.address)), "").await
    }

    pub(crate) async fn get_with_key(&self, path: &str, key: &str) -> u16 {
        self.get_with(path, "x-api-key", key).await
    }

    pub(crate) async fn get_with(&self, path: &str, header: &str, value: &str) -> u16 {
        send(Request::get(format!("http://{}{path}", self.address)).header(header, value), "").await.0
    }

    pub(crate) async fn ask_admin(&self, path: &str) -> (u16, String) {
        send(Request::get(format!("http://{}{path}", self.admin)), "").await
    }

    /// Asks for a change, with a token.
    pub(crate) async fn change(&self, path: &str, token: &str, body: &str) -> (u16, Value) {
        let request = Request::post(format!("http://{}{path}", self.admin));
        let (status, body) = send(request.header("authorization", format!("Bearer {token}")), body).await;
        (status, serde_json::from_str(&body).unwrap_or_else(|_| panic!("{status} {body}")))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().unwrap() as i32).unwrap(), signal).unwrap();
    }

    pub(crate) async fn stop(mut self) {
        self.signal(Signal::TERM);
        let ended = tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await;
        assert!(ended.expect("it ends").unwrap().success());
    }
}

async fn send(request: http::request::Builder, body: &str) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let response = client.request(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    (status, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
}
