//! Whatever bytes a client sends, no answer says that the service is to blame, and the service goes on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod service;

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, RngSeed, TestRunner};
use service::{ACME, Memory, Place, batch, raw};

const SECOND: Duration = Duration::from_secs(1);

/// One request, in bytes that a client may send.
#[derive(Clone, Debug)]
struct Bytes(Vec<u8>);

fn requests() -> impl Strategy<Value = Bytes> {
    let text = || proptest::collection::vec(any::<u8>(), 0..200);
    // What is almost right gets further than what is not.
    let good = batch("id_a", "a \u{e9} note").to_string().into_bytes();
    let almost = (Just(good), proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4));
    let almost = almost.prop_map(|(mut body, changes)| {
        changes.into_iter().for_each(|(at, byte)| *at.get_mut(&mut body) = byte);
        body
    });
    let json = r#"[\[\]{}":, a-z0-9\\u\.eE-]{0,80}"#.prop_map(String::into_bytes);
    let body = prop_oneof![text(), almost, json];
    let header = prop_oneof!["[ -~]{0,60}".prop_map(String::into_bytes), text()];
    let name = prop::sample::select(vec![
        "x-correlation-id",
        "traceparent",
        "content-type",
        "content-encoding",
        "expect",
        "authorization",
        "apikey",
        "idempotency-key",
        "accept",
        "host",
        "transfer-encoding",
        "content-length",
        "te",
        "range",
    ]);
    let percent =
        text().prop_map(|bytes| bytes.iter().map(|byte| format!("%{byte:02x}")).collect::<String>());
    let query =
        prop_oneof![percent.prop_map(String::into_bytes), "[!-~]{0,80}".prop_map(String::into_bytes), text()];
    let target = prop::sample::select(vec![
        "GET /memory/query?q=",
        "GET /memory/query?cursor=",
        "GET /memory/query?project=",
        "GET /memory/query?",
        "GET /memory/skills?cursor=",
        "GET /memory/projects?cursor=",
        "GET /memory/projects?",
        "GET /memory/jobs/",
        "POST /memory/ingest?",
        "GET /",
        "",
    ]);
    let keyed = prop::bool::weighted(0.9);
    let of_query = (target, query, name.clone(), header.clone(), keyed);
    let of_query = of_query.prop_map(|(target, query, name, header, keyed)| {
        let key = if keyed { ACME } else { "nobody" };
        let head = format!(" HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\nconnection: close\r\n{name}: ");
        Bytes([target.as_bytes(), &query, head.as_bytes(), &header, b"\r\n\r\n"].concat())
    });
    let of_body = (body, name, header, prop::bool::weighted(0.5)).prop_map(|(body, name, header, more)| {
        let mut head = format!(
            "POST /memory/ingest HTTP/1.1\r\nhost: x\r\nx-api-key: {ACME}\r\nconnection: close\r\ncontent-length: {}\r\n",
            body.len()
        )
        .into_bytes();
        if more {
            head.extend([name.as_bytes(), b": ", &header, b"\r\n"].concat());
        }
        Bytes([&head, &b"\r\n"[..], &body].concat())
    });
    prop_oneof![of_query, of_body]
}

/// Sends what is at random, and demands that no answer says that the service is to blame.
fn nothing_is_a_5xx(place: Place) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let set = [
        ("MEM_RATE_LIMIT_BURST", "1000000"),
        ("MEM_RATE_LIMIT_INGEST", "unlimited"),
        ("MEM_RATE_LIMIT_QUERY", "unlimited"),
    ];
    let mut memory = runtime.block_on(Memory::start(place, &set));
    // A fixed seed: a failure repeats.
    let runs = Runs { cases: 600, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Runs::default() };
    let mut runner = TestRunner::new(runs);
    let ran = runner.run(&requests(), |Bytes(request)| {
        let reply = runtime.block_on(async {
            let complete = |reply: &str| {
                // Of a body whose length is not true, the server waits for the rest.
                reply.contains("\r\n\r\n")
            };
            tokio::time::timeout(60 * SECOND, raw(memory.address, &request, complete)).await
        });
        let reply = reply.map_err(|_| TestCaseError::fail("no answer"))?;
        prop_assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 "), "{reply}");
        prop_assert!(!reply.starts_with("HTTP/1.1 5"), "{reply}");
        Ok(())
    });
    ran.unwrap();
    // It goes on as if nothing had been.
    runtime.block_on(async {
        memory.get("/readyz", ACME).send().await.is(200);
        let job = memory.ingest_id(ACME, "after").send().await.is(202).job_id();
        memory.done(ACME, &job).await;
        memory.stop().await;
    });
}

mod random_requests_are_never_a_5xx {
    use super::*;

    #[test]
    fn sqlite() {
        nothing_is_a_5xx(Place::sqlite());
    }

    #[test]
    fn postgres() {
        nothing_is_a_5xx(Place::postgres());
    }
}
