//! The program itself: how it starts, why it does not, and how it stops.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::client::Call;
use crate::ingest_bodies::log_line;
use crate::place::{KEY_1, NODE_1};

fn example() -> String {
    std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fleet.example.toml")).unwrap()
}

/// The program, in a directory of its own with the example file, changed.
fn program(directory: &TempDir, file: &str) -> Command {
    std::fs::write(directory.path().join("fleet.toml"), file).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleet-api"));
    command.current_dir(directory.path()).env_clear().kill_on_drop(true);
    command.env("FLEET_FILE", "fleet.toml").env("FLEET_LISTEN", "127.0.0.1:0");
    command
}

async fn fails(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().await.unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    said.lines().last().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_wrong_variable_stops_the_start() {
    let directory = tempfile::tempdir().unwrap();
    for (name, value) in [
        ("FLEET_LISTEN", "here"),
        ("FLEET_INGEST_NODE_BUDGET", "lots"),
        ("FLEET_ACCESS_ISSUANCE_DOMAIN_BUDGET", "1/day"),
        ("FLEET_DATABASE_URL", "redis://x"),
        ("FLEET_DATABASE_URL", "sqlite:no/such/directory/fleet.db"),
        ("FLEET_DATABASE_URL", "postgres://postgres:hunter2@127.0.0.1:1/x"), // A database that is down.
        ("FLEET_INGEST_FILE", "no/such/directory/x"),
        ("FLEET_FILE", "absent.toml"),
    ] {
        let said = fails(program(&directory, &example()).env(name, value)).await;
        assert!(said.contains(name) && !said.contains("hunter2"), "{said}");
    }
}

#[tokio::test]
async fn a_wrong_file_stops_the_start_with_its_place_and_without_its_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let line_of = |needle: &str| example().lines().position(|line| line.contains(needle)).unwrap() + 1;
    for (old, new, needle) in [
        ("issuer = \"fleet.example\"", "issuer = 7", "issuer ="),
        ("issuer = \"fleet.example\"", "issuer = \"\"", "issuer ="), // Was taken, as was the next.
        ("issuer = \"fleet.example\"", "issuer = \"a\\nb\"", "issuer ="),
        ("seed = \"", "seed = \"hunter2", "[signing]"),
        ("max_session_ttl_seconds = 3600", "max_session_ttl_seconds = 0", "max_session_ttl_seconds = 3600"),
        ("\"1/second burst 2\"", "\"100/day\"", "1/second burst 2"),
        ("id = \"7f1a4c9e-2b3d-4e5f-8a6b-9c0d1e2f0001\"", "id = \"7f1a4c9e\"", "id = \"7f1a4c9e-2b3d"),
        ("name = \"tls-key\"", "name = \"TLS\"", "tls-key"),
        ("value_base64 = \"AAEC", "value_base64 = \"hunter2!", "value_base64"),
        ("value = \"battery staple\"", "value = 1234567", "battery staple"),
        ("revoked = true", "revoke = true", "revoked = true"),
        ("token_sha256 = \"", "token_sha256 = \"hunter2", "token_sha256 ="),
        ("name = \"tls-key\"", "name = \"tls-key", "tls-key"),
        ("name = \"tls-key\"", "name = \"database-password\"", "tls-key"),
    ] {
        let said = fails(&mut program(&directory, &example().replacen(old, new, 1))).await;
        assert!(
            said.contains("FLEET_FILE") && said.contains(&format!("line {}, column ", line_of(needle))),
            "{old}: {said}"
        );
        for secret in ["hunter2", "1234567", "battery"] {
            assert!(!said.contains(secret), "{said}");
        }
    }
}

#[tokio::test]
async fn it_serves_sweeps_and_stops_when_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = program(&directory, &example());
    program.env("FLEET_INGEST_NODE_BUGDET", "1/second").stderr(Stdio::piped());
    let mut child = program.spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut seen = Vec::new();
    let mut line_with = async |needles: &[&str]| {
        while let Some(line) = log.next_line().await.unwrap() {
            seen.push(line.clone());
            if needles.iter().all(|needle| line.contains(needle)) {
                return line;
            }
        }
        panic!("no line with {needles:?} in {seen:#?}");
    };
    line_with(&["WARN", "no such variable"]).await;
    let listening: serde_json::Value = serde_json::from_str(&line_with(&["listening"]).await).unwrap();
    let address = listening["fields"]["address"].as_str().unwrap().parse().unwrap();
    line_with(&["rate-budget-sweep", "swept"]).await;

    let ingest = Call::new(address, http::Method::POST, format!("/v1/nodes/{NODE_1}/logs")).bearer(KEY_1);
    let ingest = ingest.header("x-plexsphere-sent-at", "2026-01-01T00:00:00Z").body(log_line("hello"));
    ingest.send().await.is_ok(202);

    kill_process(Pid::from_raw(child.id().unwrap() as i32).unwrap(), Signal::TERM).unwrap();
    assert!(child.wait().await.unwrap().success());
    let written = std::fs::read_to_string(directory.path().join("fleet-ingest.ndjson")).unwrap();
    assert!(written.contains("hello"), "{written}");
    assert!(directory.path().join("fleet.db").exists());
}

#[tokio::test]
async fn help_lists_every_variable() {
    let output = Command::new(env!("CARGO_BIN_EXE_fleet-api")).arg("--help").output().await.unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for variable in fleet_api::settings::VARIABLES {
        assert!(help.contains(variable.name), "{help}");
    }
    let wrong = Command::new(env!("CARGO_BIN_EXE_fleet-api")).arg("--port").output().await.unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}
