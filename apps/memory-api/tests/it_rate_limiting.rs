//! The tests of the memory API document, by its names, over real HTTP and on both stores, with the clock in the test's
//! hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod service;

use std::time::Duration;

use memory_api::config::Config;
use service::{ACME, ACME_2, BETA, GAMMA, Memory, Place, Reply, batch};

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);
const HALF: Duration = Duration::from_millis(500);
const MICROSECOND: Duration = Duration::from_micros(1);

/// Sends `count` queries, ten at an instant.
async fn queries(memory: &Memory, key: &str, count: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for i in 0..count {
        if i % 10 == 0 && i > 0 {
            memory.advance(SECOND);
        }
        statuses.push(memory.get("/memory/query?q=water", key).send().await.status.as_u16());
    }
    statuses
}

/// Sends `count` batches, ten at an instant, and demands that each is accepted.
async fn ingests(memory: &Memory, key: &str, count: usize) {
    for i in 0..count {
        if i % 10 == 0 && i > 0 {
            memory.advance(SECOND);
        }
        memory.ingest_id(key, &format!("batch-{i}")).send().await.is(202);
    }
}

#[track_caller]
fn is_refused(reply: &Reply, wait: u64, reason: &str, window: &str, policy: &str) {
    reply.is(429);
    assert_eq!(reply.header("retry-after"), Some(wait.to_string().as_str()));
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    assert_eq!(
        reply.text(),
        format!(
            "{{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
             \"title\":\"Quota exceeded\",\"status\":429,\"detail\":\"{reason}\",\
             \"violated-policies\":[\"{policy}\"],\"error\":\"rate_limit_exceeded\",\"reason\":\"{reason}\",\
             \"retry_after_seconds\":{wait},\"limit_window\":\"{window}\"}}"
        )
    );
    assert_eq!(reply.header("ratelimit"), Some(format!("\"{policy}\";r=0;t={wait}").as_str()));
}

on_both_stores! {
    async fn a1_within_limit_succeeds(memory) {
        assert_eq!(queries(&memory, ACME, 5).await, [200; 5]);
    }

    async fn a2_at_burst_cap_429(memory) {
        for _ in 0..10 {
            memory.get("/memory/query?q=water", ACME).send().await.is(200);
        }
        let eleventh = memory.get("/memory/query?q=water", ACME).send().await;
        is_refused(&eleventh, 1, "10 requests/second", "1s", "burst");
        let policies = "\"query\";q=1000;w=3600, \"burst\";q=10;w=1";
        assert_eq!(eleventh.header("ratelimit-policy"), Some(policies));

        // The wait is true to the microsecond: a tenth of a second fills one more.
        memory.advance(Duration::from_millis(100) - MICROSECOND);
        memory.get("/memory/query?q=water", ACME).send().await.is(429);
        memory.advance(MICROSECOND);
        memory.get("/memory/query?q=water", ACME).send().await.is(200);
        memory.get("/memory/query?q=water", ACME).send().await.is(429);
    }

    async fn a3_limit_window_resets(memory) {
        for i in 0..100 {
            if i % 10 == 0 && i > 0 {
                memory.advance(SECOND);
            }
            memory.get("/memory/projects", ACME).send().await.is(200);
        }
        memory.advance(SECOND + HALF); // A token takes 36 s, of which 10.5 have passed.
        let refused = memory.get("/memory/projects", ACME).send().await;
        is_refused(&refused, 26, "100 requests/hour for GET /memory/projects", "3600s", "projects");

        memory.advance(2 * HOUR);
        for i in 0..100 {
            if i % 10 == 0 && i > 0 {
                memory.advance(SECOND);
            }
            memory.get("/memory/projects", ACME).send().await.is(200);
        }
        memory.advance(SECOND);
        memory.get("/memory/projects", ACME).send().await.is(429);
    }

    async fn a4_per_apikey_isolation(memory) {
        assert_eq!(queries(&memory, ACME, 5).await, [200; 5]);
        assert_eq!(queries(&memory, BETA, 5).await, [200; 5]);

        // What one key has spent is nothing to the other, not even to another key of the same tenant.
        queries(&memory, ACME, 10).await;
        memory.get("/memory/query", ACME).send().await.is(429);
        memory.get("/memory/query", BETA).send().await.is(200);
        memory.get("/memory/query", ACME_2).send().await.is(200);
    }

    async fn a5_per_endpoint_isolation(memory) {
        ingests(&memory, ACME, 100).await;
        memory.advance(SECOND);
        memory.ingest_id(ACME, "one-more").send().await.is(429);
        memory.get("/memory/query?q=water", ACME).send().await.is(200);
        memory.get("/memory/projects", ACME).send().await.is(200);
        memory.get("/memory/skills", ACME).send().await.is(200);
    }

    async fn a6_retry_after_header(memory) {
        ingests(&memory, ACME, 100).await; // In nine seconds.
        memory.advance(SECOND + HALF);
        let refused = memory.ingest_id(ACME, "one-more").send().await;
        is_refused(&refused, 26, "100 requests/hour for POST /memory/ingest", "3600s", "ingest");

        // A token takes 36 s, of which 10.5 have passed: the rest is told, rounded up to a second.
        memory.advance(Duration::from_secs(25));
        memory.ingest_id(ACME, "one-more").send().await.is(429);
        memory.advance(SECOND);
        memory.ingest_id(ACME, "one-more").send().await.is(202);
        memory.ingest_id(ACME, "yet-another").send().await.is(429);
    }

    async fn a7_ingest_id_idempotent(memory) {
        let first = memory.ingest_id(ACME, "id_a").send().await;
        let again = memory.ingest_id(ACME, "id_a").send().await;
        assert_eq!(first.is(202).job_id(), again.is(202).job_id());
        assert_eq!(first.body, again.body, "byte for byte");
        assert_eq!(first.header("location"), again.header("location"));
        assert_eq!(first.header("idempotent-replayed"), None);
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
        assert_eq!(first.json()["ingest_id"], "id_a");
        assert_eq!(first.json()["status"], "queued");

        // Nothing was queued a second time.
        memory.done(ACME, &first.job_id()).await;
        let projects = memory.get("/memory/projects", ACME).send().await.json();
        assert_eq!(projects["projects"][0]["items"], 1);
    }

    async fn a8_different_ingest_ids_separate(memory) {
        let a = memory.ingest_id(ACME, "id_a").send().await;
        let b = memory.ingest_id(ACME, "id_b").send().await;
        assert_ne!(a.is(202).job_id(), b.is(202).job_id());
        // Another tenant's same id is another batch; another key of the same tenant's is the same.
        let beta = memory.ingest_id(BETA, "id_a").send().await;
        assert_ne!(a.job_id(), beta.is(202).job_id());
        let second_key = memory.ingest_id(ACME_2, "id_a").send().await;
        assert_eq!(a.job_id(), second_key.is(202).job_id());
    }

    async fn a9_idempotency_expires(memory) {
        let first = memory.ingest_id(ACME, "id_a").send().await.is(202).job_id();
        memory.advance(24 * HOUR - MICROSECOND);
        assert_eq!(memory.ingest_id(ACME, "id_a").send().await.is(202).job_id(), first);
        memory.advance(HOUR);
        assert_ne!(memory.ingest_id(ACME, "id_a").send().await.is(202).job_id(), first);
    }

    async fn a11_isolation_across_users(memory) {
        let users = [ACME, BETA, GAMMA].map(|key| async {
            let mut granted = 0;
            for _ in 0..15 {
                granted += u32::from(memory.get("/memory/query", key).send().await.status == 200);
            }
            granted
        });
        assert_eq!(futures::future::join_all(users).await, [10, 10, 10]);
    }

    async fn a12_idempotency_evict_expired(memory) {
        let mut memory = memory;
        memory.ingest_id(ACME, "id_a").send().await.is(202);
        memory.advance(23 * HOUR);
        memory.ingest_id(ACME, "id_b").send().await.is(202);
        memory.stop().await;

        use admit::{Clock, IdempotencyStore, Now};
        let rules = memory_api::limits::rules().unwrap();
        let store = admit_store::AnyStore::open(&memory.place.database_url(), rules).await.unwrap();
        memory.advance(HOUR - MICROSECOND);
        let delete = || store.delete_expired(Now::At(memory.clock.now()));
        assert_eq!(delete().await.unwrap(), 0, "nothing has expired");
        memory.advance(MICROSECOND);
        assert_eq!(delete().await.unwrap(), 1, "the first has");
        memory.advance(23 * HOUR);
        assert_eq!(delete().await.unwrap(), 1, "now the other");
        assert_eq!(delete().await.unwrap(), 0, "and nothing is left");
    }

    /// A take is all or nothing: what the second refuses costs nothing of the hour.
    async fn a_request_beyond_the_burst_costs_nothing_of_the_hour(memory) {
        for _ in 0..30 {
            let _ = memory.get("/memory/query", ACME).send().await;
        }
        memory.advance(SECOND);
        let reply = memory.get("/memory/query", ACME).send().await;
        assert_eq!(reply.is(200).header("ratelimit"), Some("\"query\";r=989;t=39, \"burst\";r=9;t=1"));
    }

    /// And what the hour refuses costs nothing of the second; its wait is true to the microsecond.
    async fn a_request_beyond_the_hour_costs_nothing_of_the_second(memory) {
        let mut memory = memory;
        memory.restart(&[("MEM_RATE_LIMIT_BURST", "100")]).await;
        for i in 0..100 {
            memory.ingest_id(ACME, &format!("batch-{i}")).send().await.is(202);
        }
        memory.advance(SECOND);
        for _ in 0..150 {
            memory.ingest_id(ACME, "one-more").send().await.is(429);
        }
        memory.advance(35 * SECOND - MICROSECOND); // A token takes 36 s.
        let refused = memory.ingest_id(ACME, "one-more").send().await;
        is_refused(&refused, 1, "100 requests/hour for POST /memory/ingest", "3600s", "ingest");
        memory.advance(MICROSECOND);
        let granted = memory.ingest_id(ACME, "one-more").send().await;
        assert_eq!(granted.is(202).header("ratelimit"), Some("\"ingest\";r=0;t=3600, \"burst\";r=99;t=1"));
        assert_eq!(granted.header("idempotent-replayed"), None, "no refusal left a record");
    }

    async fn a_replay_costs_only_the_burst_and_a_refusal_leaves_no_record(memory) {
        let first = memory.ingest_id(ACME, "id_a").send().await.is(202).job_id();
        for _ in 0..9 {
            memory.ingest_id(ACME, "id_a").send().await.is(202);
        }
        memory.ingest_id(ACME, "id_a").send().await.is(429);
        let refused = memory.ingest_id(ACME, "id_b").send().await;
        is_refused(&refused, 1, "10 requests/second", "1s", "burst");
        memory.advance(SECOND);
        let next = memory.ingest_id(ACME, "id_b").send().await;
        assert_eq!(next.is(202).header("idempotent-replayed"), None, "the refused request left no record");
        assert_eq!(next.header("ratelimit"), Some("\"ingest\";r=98;t=71, \"burst\";r=9;t=1"));
        assert_eq!(memory.ingest_id(ACME, "id_a").send().await.job_id(), first);
    }

    async fn skills_and_jobs_have_only_the_burst(memory) {
        for _ in 0..120 {
            for _ in 0..10 {
                memory.get("/memory/skills", ACME).send().await.is(200);
            }
            memory.get("/memory/skills", ACME).send().await.is(429);
            memory.advance(SECOND);
        }
    }

    async fn an_unknown_key_touches_no_bucket(memory) {
        for path in ["/memory/query", "/memory/skills", "/memory/projects", "/memory/jobs/x"] {
            memory.get(path, "nobody").send().await.is_problem(401, "known API key");
            let plain = memory.call(http::Method::GET, path).send().await;
            assert_eq!(plain.is(401).header("ratelimit"), None);
        }
        memory.ingest("nobody", batch("a", "b").to_string()).send().await.is(401);
        let mut memory = memory;
        memory.stop().await;
        let rows = match &memory.place.postgres {
            Some(postgres) => postgres.psql("SELECT count(*) FROM admit.rate_budgets").unwrap(),
            None => {
                let file = rusqlite::Connection::open(memory.place.directory.path().join("memory.db")).unwrap();
                let count = "SELECT count(*) FROM rate_budgets";
                file.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap().to_string()
            }
        };
        assert_eq!(rows, "0");
    }

    async fn limits_are_what_the_variables_say(memory) {
        let mut memory = memory;
        let set = [
            ("MEM_RATE_LIMIT_INGEST", "2"),
            ("MEM_RATE_LIMIT_QUERY", "3"),
            ("MEM_RATE_LIMIT_PROJECTS", "4"),
            ("MEM_RATE_LIMIT_SKILLS", "5"),
            ("MEM_RATE_LIMIT_BURST", "6"),
            ("MEM_IDEMPOTENCY_TTL_SECS", "10"),
        ];
        memory.restart(&set).await;
        for (path, most) in [("/memory/query", 3), ("/memory/projects", 4), ("/memory/skills", 5)] {
            for i in 0..=most {
                let reply = memory.get(path, ACME).send().await;
                assert_eq!(reply.status == 200, i < most, "{path} {i}");
            }
        }
        let first = memory.ingest_id(ACME, "id_a").send().await.is(202).job_id();
        memory.advance(10 * SECOND);
        assert_ne!(memory.ingest_id(ACME, "id_a").send().await.is(202).job_id(), first);
        let reply = memory.ingest_id(ACME, "id_b").send().await;
        is_refused(&reply, 1_790, "2 requests/hour for POST /memory/ingest", "3600s", "ingest");
    }
}

#[test]
fn a10_rate_limit_per_endpoint_documented() {
    let limits = Config::read(&|_| None).unwrap().limits;
    assert_eq!((limits.ingest, limits.query, limits.projects), (Some(100), Some(1000), Some(100)));
    assert_eq!((limits.skills, limits.burst), (None, 10));
    let guide =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/memory-api.md"));
    let guide = guide.unwrap();
    for row in [
        "| `POST /memory/ingest` | 202 `{\"job_id\", \"ingest_id\", \"status\": \"queued\"}`, `Location` | 100 | 10 |",
        "| 1000 | 10 |",
        "| `GET /memory/skills?limit=&cursor=` | distinct skills, the newest first | | 10 |",
        "| `GET /memory/projects?limit=&cursor=` | projects by name, with counts | 100 | 10 |",
    ] {
        assert!(guide.contains(row), "the guide does not say {row}");
    }
    for setting in memory_api::config::SETTINGS {
        let name = setting.name.replace("MEM_RATE_LIMIT_", "_");
        assert!(
            guide.contains(setting.name) || guide.contains(&name),
            "the guide does not name {}",
            setting.name
        );
    }
}

#[tokio::test]
async fn limits_outlive_a_restart() {
    let mut memory = Memory::start(Place::sqlite(), &[]).await;
    ingests(&memory, ACME, 100).await;
    memory.restart(&[]).await;
    memory.advance(SECOND);
    memory.ingest_id(ACME, "batch-0").send().await.is(202);
    memory.ingest_id(ACME, "one-more").send().await.is(429);
}
