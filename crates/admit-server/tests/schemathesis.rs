//! schemathesis against the program: what it does is what `/openapi.json` says, for all that schemathesis comes up with.
//!
//! It runs where schemathesis is installed: `cargo xtask test` sees to that.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// A budget of each kind, and a scope that callers bring budgets for.
const POLICY: &str = r#"
    store = "memory:"
    retention = "24h"
    keys = "keys.toml"
    scopes = ["exports", "reports"]
    [budgets.hourly]
    rate = "100000/hour burst 1000000"
    by = "header:x-user"
    plans = { pro = "1000/hour" }
    [budgets.burst]
    rate = "10/second"
    by = "ip"
    [budgets.all]
    rate = "1000000/minute"
    by = "const:all"
    [budgets.pair]
    rate = "10/second"
    by = ["tenant", "ip", "const:x"]
    [budgets.bytes]
    rate = "1MiB/second"
    by = "header:x-user"
    cost = "body_bytes"
    [budgets.watched]
    rate = "1/second"
    by = "header:x-user"
    mode = "shadow"
    [budgets.envoy]
    rate = "1000/minute"
    by = "entry:user"
    [[routes]]
    match = "* /{*path}"
    budgets = ["hourly", "burst"]
    [[descriptors]]
    entries = { user = "*" }
    budgets = ["envoy"]
"#;

/// With the directory that it is installed in, if that is one of its own.
fn schemathesis() -> Command {
    match std::env::var_os("ADMIT_SCHEMATHESIS").map(PathBuf::from) {
        Some(directory) => {
            let mut command = Command::new(directory.join("bin/schemathesis"));
            command.env("PYTHONPATH", directory);
            command
        }
        None => Command::new("schemathesis"),
    }
}

async fn start(directory: &tempfile::TempDir) -> (Child, String) {
    std::fs::write(directory.path().join("admit.toml"), POLICY.trim_start()).unwrap();
    std::fs::write(directory.path().join("keys.toml"), "").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_admit"));
    command.args(["serve", "admit.toml", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.current_dir(directory.path()).env_clear().stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let address = loop {
        let line = lines.next_line().await.unwrap().expect("it did not start");
        let fields = serde_json::from_str::<Value>(&line).unwrap_or_default()["fields"].clone();
        if fields["message"] == "listening" {
            break fields["address"].as_str().unwrap().to_owned();
        }
    };
    tokio::spawn(async move { while lines.next_line().await.is_ok_and(|line| line.is_some()) {} });
    (child, address)
}

/// By its name it takes turns with other tests that run several processes.
#[tokio::test]
async fn schemathesis_finds_nothing_with_two_processes() {
    let is_installed = schemathesis().arg("--version").output().await.is_ok_and(|out| out.status.success());
    if !is_installed {
        println!("schemathesis is not installed; the description was not tried");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (_program, address) = start(&directory).await;
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schemathesis.toml");
    // /authorize is asked with whatever method, also one that no description can list; and schemathesis takes an empty
    // header for one that fits a pattern.
    let authorize = "unsupported_method,positive_data_acceptance";
    for arguments in [
        &["--exclude-path", "/authorize"][..],
        &["--include-path", "/authorize", "--exclude-checks", authorize],
    ] {
        let mut command = schemathesis();
        command.args(["--config-file", config, "run", &format!("http://{address}/openapi.json")]);
        // One seed, so that what it finds is found again; enough examples for a few seconds.
        command.args(["--checks", "all", "--seed", "1", "--max-examples", "25"]).args(arguments);
        let output = command.current_dir(directory.path()).output().await.unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}
