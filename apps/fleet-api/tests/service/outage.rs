//! PostgreSQL goes away and comes back.

use std::io::Write;
use std::sync::{Arc, Mutex};

use admit_testbed::Shutdown;
use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use crate::client::Reply;
use crate::ingest_bodies::{log_line, sample};
use crate::place::{Fleet, KEY_1, NODE_1, Place, TOKEN};

/// What is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

async fn all_operations(fleet: &Fleet) -> [Reply; 5] {
    let audit = json!({"source": "k8s", "action": "a", "outcome": "b", "timestamp": "2026-01-01T00:00:00Z"});
    [
        fleet.read(NODE_1, KEY_1).send().await,
        fleet.ingest(NODE_1, KEY_1, "metrics").body(format!("[{}]", sample("a"))).send().await,
        fleet.ingest(NODE_1, KEY_1, "logs").body(log_line("a")).send().await,
        fleet.ingest(NODE_1, KEY_1, "audit").body(audit.to_string()).send().await,
        fleet.open(TOKEN, json!({"idempotency_key": "a"})).send().await,
    ]
}

#[tokio::test]
async fn an_outage_is_500_with_the_cause_in_the_log_and_ends_by_itself() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().json().with_writer(log.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber); // The test's runtime has one thread.
    let place = Place::postgres();
    let (fleet, postgres) = (place.start().await, place.postgres.as_ref().unwrap());
    let ok = [200, 202, 202, 202, 201];
    for (reply, status) in all_operations(&fleet).await.iter().zip(ok) {
        reply.is_ok(status);
    }
    fleet.get("/readyz").send().await.is_ok(200);

    for shutdown in [Shutdown::Fast, Shutdown::Immediate] {
        postgres.stop(shutdown).unwrap();
        for reply in all_operations(&fleet).await {
            let problem = reply.is_problem(500, "internal");
            assert_eq!(reply.retry_after(), None, "nothing says when it is back");
            assert!(!problem.to_string().to_lowercase().contains("postgres"), "{problem}");
            let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
            let correlation_id = problem["correlation_id"].as_str().unwrap();
            let told = |line: &&str| {
                line.contains(correlation_id) && line.contains("the PostgreSQL store is unavailable")
            };
            let line =
                log.lines().find(told).unwrap_or_else(|| panic!("the log has no cause of {correlation_id}"));
            assert!(line.contains("\"level\":\"ERROR\""), "{line}");
        }
        fleet.get("/readyz").send().await.is_problem(503, "not_ready");
        fleet.get("/healthz").send().await.is_ok(200);

        postgres.start_again().unwrap();
        for (reply, status) in all_operations(&fleet).await.iter().zip(ok) {
            reply.is_ok(status);
        }
    }
    // A server that hangs is given up after the store's time limits.
    postgres.pause().unwrap();
    fleet.read(NODE_1, KEY_1).send().await.is_problem(500, "internal");
    fleet.get("/readyz").send().await.is_problem(503, "not_ready");
    postgres.resume().unwrap();
    fleet.open(TOKEN, json!({"idempotency_key": "a"})).send().await.is_ok(201);

    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(
        !log.contains(KEY_1) && !log.contains(TOKEN) && !log.contains("battery staple"),
        "a secret was logged"
    );
}
