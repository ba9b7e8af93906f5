//! The log at its most talkative, while requests succeed and fail and the server goes away.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod program;

use admit_testbed::{Postgres, Shutdown};
use http::Method;
use program::{Place, Program, ask};
use serde_json::json;

fn batch(id: &str, text: &str) -> String {
    json!({"ingest_id": id, "project": "p", "items": [{"kind": "note", "text": text}]}).to_string()
}

/// A row that the server refused was told whole in the error's detail, with the text of the batch.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_holds_no_secret_and_no_text_of_a_request() {
    let postgres = Postgres::start().unwrap();
    postgres
        .psql("CREATE ROLE app LOGIN PASSWORD 'hunter2-database'; GRANT CREATE ON DATABASE postgres TO app")
        .unwrap();
    let url = postgres.url().replace("postgres@", "app:hunter2-database@");
    let place = Place::Postgres(postgres);
    let Place::Postgres(postgres) = &place else { panic!() };
    let set = [
        ("MEM_DATABASE_URL", url.as_str()),
        ("MEM_LOG", "trace"),
        ("MEM_API_KEYS", "acme=key-of-acme,beta=hunter2-other-key"),
        ("MEM_RATE_LIMIT_BURST", "1000"),
        ("MEM_IDEMPOTENCY_LEASE_SECS", "1"),
    ];
    let program = Program::start(&place, &set).await;
    let post =
        async |body: String| ask(program.address, Method::POST, "/memory/ingest", body).await.unwrap().status;
    let get = async |path: &str| ask(program.address, Method::GET, path, String::new()).await.unwrap().status;

    let mut seen = Vec::new();
    seen.push(post(batch("hunter2-id", "hunter2 text")).await);
    seen.push(post(batch("hunter2-id", "hunter2 text")).await);
    seen.push(post(batch("hunter2-id", "hunter2 other text")).await);
    seen.push(post("{\"hunter2-member\": 1}".to_owned()).await);
    seen.push(post("hunter2 not json".to_owned()).await);
    seen.push(post(batch("hunter2\u{1}", "hunter2")).await);
    seen.push(get("/memory/query?q=hunter2").await);
    seen.push(get("/memory/query?hunter2=hunter2").await);
    seen.push(get("/memory/query?cursor=hunter2").await);
    seen.push(get("/memory/jobs/hunter2").await);
    seen.push(get("/hunter2").await);
    // The server refuses rows: of the job, and of its items.
    postgres.psql("ALTER TABLE memory.jobs ADD CONSTRAINT no CHECK (items < 0) NOT VALID").unwrap();
    seen.push(post(batch("hunter2-refused", "hunter2 refused")).await);
    postgres.psql("ALTER TABLE memory.jobs DROP CONSTRAINT no").unwrap();
    postgres.psql("ALTER TABLE memory.items ADD CONSTRAINT no CHECK (position < 0) NOT VALID").unwrap();
    seen.push(post(batch("hunter2-items", "hunter2 items")).await);
    program.logs(&["failed", "job"]).await;
    postgres
        .psql("ALTER TABLE admit.idempotency_records ADD CONSTRAINT no CHECK (fence < 0) NOT VALID")
        .unwrap();
    seen.push(post(batch("hunter2-record", "hunter2 record")).await);
    postgres
        .psql("ALTER TABLE admit.idempotency_records DROP CONSTRAINT no; DROP TABLE memory.skills")
        .unwrap();
    seen.push(get("/memory/skills").await);
    postgres.stop(Shutdown::Immediate).unwrap();
    seen.push(post(batch("hunter2-away", "hunter2 away")).await);
    seen.push(get("/memory/query?q=hunter2").await);
    let log = program.stop_with_log().await;
    assert_eq!(seen, [202, 202, 422, 400, 400, 202, 200, 400, 400, 404, 404, 503, 202, 503, 503, 503, 503]);
    let told: Vec<&str> =
        log.lines().filter(|line| line.contains("hunter2") || line.contains("key-of-acme")).collect();
    assert!(told.is_empty(), "{} lines: {told:#?}", told.len());
}
