//! The snippets of the guide's page for callers, run as they stand. A language whose program is not installed is left out,
//! and said to be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use admit_listen::Limits;
use admit_server::Front;
use admit_server::metrics::Metrics;
use admit_server::policy::{Keys, Policy};
use admit_store::AnyStore;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

const PAGE: &str = include_str!("../../../docs/guide/callers.md");
const POLICY: &str = "[budgets.hourly]\nrate = \"1/hour\"\nby = \"header:x-user\"";

/// The word behind a fence, the file that the snippet goes into, and how that is run.
const LANGUAGES: [(&str, &str, &[&str]); 4] = [
    ("sh", "caller.sh", &["sh"]),
    ("python", "caller.py", &["python3"]),
    ("js", "caller.js", &["node"]),
    ("go", "caller.go", &["go", "run"]),
];

fn snippet(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect(language);
    rest.split_once("```").unwrap().0
}

/// What the snippet exits with.
async fn run(directory: &Path, file: &str, program: &[&str], admit: &str) -> Option<i32> {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg(file).current_dir(directory).env("ADMIT", admit);
    command.env("GOCACHE", directory.join("go")).env("NO_PROXY", "*").stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let code = output.status.code();
    // `go run` exits with 1 whatever its program does, and says what that was.
    match String::from_utf8_lossy(&output.stderr).trim().strip_prefix("exit status ") {
        Some(told) if program[0] == "go" => told.parse().ok(),
        _ => code,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_snippet_tells_granted_from_refused_from_not_known() {
    for (language, file, program) in LANGUAGES {
        let asked = if program[0] == "go" { "version" } else { "--version" };
        let mut installed = Command::new(program[0]);
        installed.arg(asked).stdout(Stdio::null()).stderr(Stdio::null());
        if language != "sh" && installed.status().is_err() {
            println!("{} is not installed; its snippet was not run", program[0]);
            continue;
        }
        let policy = Policy::parse("test", POLICY).unwrap();
        let store = AnyStore::open("memory:", policy.rules().unwrap()).await.unwrap();
        let front = Front::new(Arc::new(policy), Arc::new(Keys::default()), store, Metrics::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admit = format!("http://{}", listener.local_addr().unwrap());
        let serving =
            admit_listen::serve(listener, front.decide(), Limits::default(), CancellationToken::new());
        let serving = AbortOnDropHandle::new(tokio::spawn(serving));
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(file), snippet(language)).unwrap();
        for expected in [0, 1] {
            assert_eq!(run(directory.path(), file, program, &admit).await, Some(expected), "{language}");
        }
        drop(serving);
        assert_eq!(run(directory.path(), file, program, "http://127.0.0.1:1").await, Some(2), "{language}");
    }
}
