//! What an operator is told of a PostgreSQL that is away, and how.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod program_place;

use admit_testbed::{Postgres, Shutdown};
use program_place::{Serving, run};
use serde_json::Value;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const POLICY: &str =
    "[budgets.x]\nrate = \"1000/hour\"\nby = \"const:all\"\n[[routes]]\nmatch = \"* /\"\nbudgets = [\"x\"]\n";

/// What readiness, status and metrics say of the store, and how `admit status` ends.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    ready: u16,
    problem: String,
    health: String,
    code: i32,
    up: String,
}

impl Told {
    fn well() -> Self {
        Self { ready: 200, problem: String::new(), health: "up".into(), code: 0, up: "1".into() }
    }

    fn away(kind: &str) -> Self {
        Self { ready: 503, problem: kind.into(), health: kind.into(), code: 1, up: "0".into() }
    }
}

/// Beside it, the metrics. All are asked at once, as each gives the store two seconds.
async fn told(directory: &tempfile::TempDir, serving: &Serving) -> (Told, String) {
    let url = format!("http://{}", serving.admin);
    let status = ["status", "--admin", &url, "--json"];
    let ((ready, problem), (code, status, _), (_, metrics)) =
        tokio::join!(serving.ask_admin("/readyz"), run(directory, &status), serving.ask_admin("/metrics"));
    let problem: Value = serde_json::from_str(&problem).unwrap_or_default();
    let status: Value = serde_json::from_str(&status).unwrap();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let up = metrics.lines().find_map(|line| line.strip_prefix("admit_store_up ")).unwrap().to_owned();
    let (problem, health) = (word(&problem["store"]), word(&status["store"]["health"]));
    (Told { ready, problem, health, code, up }, metrics)
}

fn errors(metrics: &str, kind: &str) -> u64 {
    let line = format!("admit_store_errors_total{{kind=\"{kind}\"}} ");
    metrics.lines().find_map(|found| found.strip_prefix(&line)).unwrap().parse().unwrap()
}

/// The takes that were debited for nobody, or may have been.
fn unanswered(metrics: &str) -> u64 {
    let name = "admit_store_unanswered_takes_total ";
    metrics.lines().find_map(|found| found.strip_prefix(name)).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_postgres_that_hangs_is_told_from_one_that_refuses_outage() {
    let (directory, postgres) = (tempfile::tempdir().unwrap(), Postgres::fast().unwrap());
    std::fs::write(directory.path().join("admit.toml"), POLICY).unwrap();
    let serving = Serving::start(&directory, &["admit.toml", "--store", &postgres.url()]).await;
    assert_eq!(serving.get("/authorize").await.0, 200);
    let (now, before) = told(&directory, &serving).await;
    assert_eq!((now, unanswered(&before)), (Told::well(), 0));

    postgres.pause().unwrap();
    assert_eq!(serving.get("/authorize").await.0, 503);
    let (now, before) = told(&directory, &serving).await;
    assert_eq!(
        (now, unanswered(&before)),
        (Told::away("timeout"), 1),
        "it may be debited, and was not granted"
    );
    assert_eq!(serving.get("/authorize").await.0, 503, "unavailable, and no refusal");
    let (_, after) = serving.ask_admin("/metrics").await;
    assert!(errors(&after, "timeout") > errors(&before, "timeout") && errors(&after, "refused") == 0);
    postgres.resume().unwrap();
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(100));
    while told(&directory, &serving).await.0 != Told::well() {
        tick.tick().await; // What waited for it has to end first.
    }

    postgres.stop(Shutdown::Immediate).unwrap();
    assert_eq!(told(&directory, &serving).await.0, Told::away("refused"));
    assert_eq!(serving.get("/authorize").await.0, 503);
    assert!(errors(&serving.ask_admin("/metrics").await.1, "refused") > 0);
    postgres.start_again().unwrap();
    assert_eq!(told(&directory, &serving).await.0, Told::well());
    serving.stop().await;
}

/// gRPC health only looked, which a server that only reads answers, and of a budget with a burst below 1 it asked nothing at all:
/// it said SERVING while `/readyz` said 503.
#[tokio::test]
async fn grpc_health_and_readiness_say_the_same_outage() {
    let (directory, postgres) = (tempfile::tempdir().unwrap(), Postgres::fast().unwrap());
    let policy = "[budgets.x]\nrate = \"0.5/second burst 0.5\"\nby = \"ip\"\n";
    std::fs::write(directory.path().join("admit.toml"), policy).unwrap();
    let serving = Serving::start(&directory, &["admit.toml", "--store", &postgres.url()]).await;
    let channel =
        Channel::from_shared(format!("http://{}", serving.address)).unwrap().connect().await.unwrap();
    let both = async || {
        let mut health = HealthClient::new(channel.clone());
        let asked = health.check(HealthCheckRequest { service: String::new() }).await.unwrap().into_inner();
        (asked.status() == ServingStatus::Serving, serving.ask_admin("/readyz").await.0)
    };
    assert_eq!(both().await, (true, 200));
    postgres.psql("ALTER SYSTEM SET default_transaction_read_only = on").unwrap();
    postgres.psql("SELECT pg_reload_conf()").unwrap();
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(100));
    let read_only = async {
        while both().await != (false, 503) {
            tick.tick().await; // Its sessions take the setting when they come to it.
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), read_only).await.expect("they differ");
    postgres.stop(Shutdown::Immediate).unwrap();
    assert_eq!(both().await, (false, 503));
    serving.stop().await;
}

/// Shadows were charged before the decision, one after the other: with the store away each of them held up every request for five
/// seconds, also one that no budget decides about.
#[tokio::test]
async fn no_request_waits_for_a_shadow_in_an_outage() {
    let (directory, postgres) = (tempfile::tempdir().unwrap(), Postgres::fast().unwrap());
    let shadow = |name: &str| {
        format!("[budgets.{name}]\nrate = \"1000/hour\"\nby = \"const:all\"\nmode = \"shadow\"\n")
    };
    let route = "[[routes]]\nmatch = \"* /\"\nbudgets = [\"a\", \"b\"]\n";
    std::fs::write(directory.path().join("admit.toml"), shadow("a") + &shadow("b") + route).unwrap();
    let serving = Serving::start(&directory, &["admit.toml", "--store", &postgres.url()]).await;
    assert_eq!(serving.get("/authorize").await.0, 200);
    postgres.pause().unwrap();
    for _ in 0..2 {
        let told = tokio::time::timeout(std::time::Duration::from_secs(3), serving.get("/authorize")).await;
        assert_eq!(told.expect("it waits for nothing").0, 200);
    }
    postgres.resume().unwrap();
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(100));
    let counted = |metrics: &str, budget: &str| {
        let of_budget = format!("admit_decisions_total{{budget=\"{budget}\",mode=\"shadow\"");
        let counts = metrics.lines().filter_map(|line| line.strip_prefix(&of_budget)?.rsplit(' ').next());
        counts.map(|count| count.parse::<u64>().unwrap()).sum::<u64>()
    };
    loop {
        let (_, metrics) = serving.ask_admin("/metrics").await;
        if [counted(&metrics, "a"), counted(&metrics, "b")] == [3, 3] {
            break; // Each is counted, whatever it came to.
        }
        tick.tick().await;
    }
    serving.stop().await;
}

/// A server that only reads, and a scope without a budget of the policy, were told as well: what was asked was a question that
/// they answer, or none.
#[tokio::test]
async fn a_postgres_that_only_reads_is_told_from_one_that_is_well_outage() {
    let (directory, postgres) = (tempfile::tempdir().unwrap(), Postgres::fast().unwrap());
    std::fs::write(directory.path().join("admit.toml"), "scopes = [\"exports\"]\n").unwrap();
    let serving = Serving::start(&directory, &["admit.toml", "--store", &postgres.url()]).await;
    assert_eq!(told(&directory, &serving).await.0, Told::well());
    postgres.psql("ALTER SYSTEM SET default_transaction_read_only = on").unwrap();
    postgres.psql("SELECT pg_reload_conf()").unwrap();
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(100));
    while told(&directory, &serving).await.0 != Told::away("rejected") {
        tick.tick().await; // Its sessions take the setting when they come to it.
    }
    serving.stop().await;
}
