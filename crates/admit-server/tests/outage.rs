//! What an operator is told of a PostgreSQL that is away, and how.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod program_place;

use admit_testbed::{Postgres, Shutdown};
use program_place::{Serving, run};
use serde_json::Value;

const POLICY: &str =
    "[budgets.x]\nrate = \"1000/hour\"\nby = \"const:all\"\n[[routes]]\nmatch = \"* /\"\nbudgets = [\"x\"]\n";

/// What readiness, status and metrics say of the store, and how `admit status` ends.
async fn told(directory: &tempfile::TempDir, serving: &Serving) -> (u16, String, String, i32, String) {
    let (ready, problem) = serving.ask_admin("/readyz").await;
    let problem: Value = serde_json::from_str(&problem).unwrap_or_default();
    let url = format!("http://{}", serving.admin);
    let (code, status, _) = run(directory, &["status", "--admin", &url, "--json"]).await;
    let status: Value = serde_json::from_str(&status).unwrap();
    let metrics = serving.ask_admin("/metrics").await.1;
    let up = metrics.lines().find_map(|line| line.strip_prefix("admit_store_up ")).unwrap().to_owned();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (ready, word(&problem["store"]), word(&status["store"]["health"]), code, up)
}

async fn errors(serving: &Serving, kind: &str) -> u64 {
    let line = format!("admit_store_errors_total{{kind=\"{kind}\"}} ");
    let metrics = serving.ask_admin("/metrics").await.1;
    metrics.lines().find_map(|found| found.strip_prefix(&line)).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_postgres_that_hangs_is_told_from_one_that_refuses_outage() {
    let (directory, postgres) = (tempfile::tempdir().unwrap(), Postgres::fast().unwrap());
    std::fs::write(directory.path().join("admit.toml"), POLICY).unwrap();
    let serving = Serving::start(&directory, &["admit.toml", "--store", &postgres.url()]).await;
    let expected = |ready, word: &str, health: &str, code, up: &str| {
        (ready, word.to_owned(), health.to_owned(), code, up.to_owned())
    };
    let well = expected(200, "", "up", 0, "1");
    assert_eq!(serving.get("/authorize").await.0, 200);
    assert_eq!(told(&directory, &serving).await, well);

    postgres.pause().unwrap();
    assert_eq!(told(&directory, &serving).await, expected(503, "timeout", "timeout", 1, "0"));
    let (timeouts, refusals) = (errors(&serving, "timeout").await, errors(&serving, "refused").await);
    assert_eq!(serving.get("/authorize").await.0, 503, "unavailable, and no refusal");
    assert!(errors(&serving, "timeout").await > timeouts && refusals == 0);
    postgres.resume().unwrap();
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(100));
    while told(&directory, &serving).await != well {
        tick.tick().await; // What waited for it has to end first.
    }

    postgres.stop(Shutdown::Immediate).unwrap();
    assert_eq!(told(&directory, &serving).await, expected(503, "refused", "refused", 1, "0"));
    assert_eq!(serving.get("/authorize").await.0, 503);
    assert!(errors(&serving, "refused").await > 0);
    postgres.start_again().unwrap();
    assert_eq!(told(&directory, &serving).await, well);
    serving.stop().await;
}

/// A server that only reads, and a scope without a budget of the policy, were told as well: what was asked was a question that
/// they answer, or none.
#[tokio::test]
async fn a_postgres_that_only_reads_is_told_from_one_that_is_well_outage() {
    let (directory, postgres) = (tempfile::tempdir().unwrap(), Postgres::fast().unwrap());
    std::fs::write(directory.path().join("admit.toml"), "scopes = [\"exports\"]\n").unwrap();
    let serving = Serving::start(&directory, &["admit.toml", "--store", &postgres.url()]).await;
    assert_eq!(told(&directory, &serving).await.0, 200);
    postgres.psql("ALTER SYSTEM SET default_transaction_read_only = on").unwrap();
    postgres.psql("SELECT pg_reload_conf()").unwrap();
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(100));
    let rejected = (503, "rejected".to_owned(), "rejected".to_owned(), 1, "0".to_owned());
    while told(&directory, &serving).await != rejected {
        tick.tick().await; // Its sessions take the setting when they come to it.
    }
    serving.stop().await;
}
