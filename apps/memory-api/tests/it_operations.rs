//! What surrounds every request: the caller's key, correlation ids, probes, metrics, and an end that breaks nothing off.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod service;

use std::collections::BTreeSet;

use http::Method;
use service::{ACME, ACME_2, BETA, Memory, Reply, batch};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The id of an answer, as every answer has one.
fn correlation_id(reply: &Reply) -> String {
    reply.header("x-correlation-id").expect("every answer has a correlation id").to_owned()
}

on_both_stores! {
    async fn a_key_comes_in_three_headers_and_is_one_caller(memory) {
        let call = || memory.call(Method::GET, "/memory/query");
        let bearer = format!("Bearer {ACME}");
        for (i, call) in [
            call().header("x-api-key", ACME),
            call().header("apikey", ACME),
            call().header("authorization", &bearer),
            call().header("authorization", &bearer.replace("Bearer", "bearer")),
            call().header("x-api-key", ACME).header("authorization", "Bearer nobody"),
        ]
        .into_iter()
        .enumerate()
        {
            let reply = call.send().await;
            let field = reply.is(200).header("ratelimit").unwrap();
            let (hour, second) =
                (format!("\"query\";r={};t=", 999 - i), format!(", \"burst\";r={};t=1", 9 - i));
            assert!(field.starts_with(&hour) && field.ends_with(&second), "{field}");
            assert_eq!(reply.header("ratelimit-policy"), Some("\"query\";q=1000;w=3600, \"burst\";q=10;w=1"));
        }
        // Another key of the same tenant is another caller.
        let other = memory.get("/memory/query", ACME_2).send().await;
        assert!(other.is(200).header("ratelimit").unwrap().starts_with("\"query\";r=999;"));
    }

    async fn every_answer_has_a_correlation_id(memory) {
        let sent = "0f9a.b_c-D:7";
        for path in
            ["/memory/query", "/memory/query?colour=red", "/nowhere", "/healthz", "/readyz", "/metrics"]
        {
            let own = memory.get(path, ACME).header("x-correlation-id", sent).send().await;
            let made = [memory.get(path, ACME).send().await, memory.get(path, "nobody").send().await];
            let ids: BTreeSet<_> = made.iter().map(correlation_id).collect();
            assert_eq!(ids.len(), 2, "{path}: each its own");
            assert!(ids.iter().all(|id| id.len() >= 16), "{ids:?}");
            assert_eq!(correlation_id(&own), sent, "{path}");
        }
        let refused = memory.ingest(ACME, "{").header("x-correlation-id", sent).send().await;
        assert_eq!(correlation_id(refused.is(400)), sent);
        // What could not stand in a log is not repeated.
        let long = "x".repeat(1_000);
        for wrong in [&b""[..], b"a b", b"\xff", "é".as_bytes(), long.as_bytes()] {
            let reply = memory.get("/healthz", ACME).header_bytes("x-correlation-id", wrong).send().await;
            assert_ne!(correlation_id(&reply).as_bytes(), wrong);
        }
    }

    async fn probes_and_metrics_tell_what_happened_and_not_to_whom(memory) {
        let healthy = memory.call(Method::GET, "/healthz").send().await;
        assert_eq!(healthy.is(200).text(), "ok\n");
        assert_eq!(memory.call(Method::GET, "/readyz").send().await.is(200).text(), "ready\n");

        let job = memory.ingest_id(ACME, "nightly-7").send().await.is(202).job_id();
        memory.done(ACME, &job).await;
        memory.ingest_id(ACME, "nightly-7").send().await.is(202);
        memory.ingest(ACME, batch("nightly-7", "another text").to_string()).send().await.is(422);
        memory.get("/memory/query?q=water", BETA).send().await.is(200);
        for _ in 0..12 {
            memory.get("/memory/skills", BETA).send().await;
        }
        memory.get("/memory/projects", "nobody").send().await.is(401);
        memory.get("/no/such/path/garden", ACME).send().await.is(404);

        let metrics = memory.call(Method::GET, "/metrics").send().await;
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        assert_eq!(metrics.is(200).header("content-type"), Some(kind));
        let text = metrics.text();
        for line in [
            "memory_http_requests_total{route=\"/memory/ingest\",status=\"202\"} 2",
            "memory_http_requests_total{route=\"/memory/ingest\",status=\"422\"} 1",
            "memory_http_requests_total{route=\"/memory/skills\",status=\"200\"} 10",
            "memory_http_requests_total{route=\"/memory/skills\",status=\"429\"} 2",
            "memory_http_requests_total{route=\"/memory/projects\",status=\"401\"} 1",
            "memory_http_requests_total{route=\"unmatched\",status=\"404\"} 1",
            "memory_http_request_seconds_count{route=\"/memory/query\"} 1",
            "memory_budget_decisions_total{scope=\"query\",outcome=\"granted\"} 1",
            "memory_budget_decisions_total{scope=\"burst\",outcome=\"refused\"} 2",
            "memory_jobs_total{outcome=\"done\"} 1",
            "memory_items_total 1",
            "memory_jobs_open 0",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
        for secret in [ACME, BETA, "acme", "beta", "nobody", &job, "nightly", "garden", "water"] {
            assert!(!text.contains(secret), "{secret} in\n{text}");
        }
    }

    async fn a_request_that_runs_is_finished_before_the_service_stops(memory) {
        let mut memory = memory;
        let body = batch("id_a", "a note").to_string();
        let mut stream = TcpStream::connect(memory.address).await.unwrap();
        let head = format!(
            "POST /memory/ingest HTTP/1.1\r\nhost: x\r\nx-api-key: {ACME}\r\ncontent-length: {}\r\n\
             expect: 100-continue\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The service asks for the body: the request runs.
        let mut read = vec![0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
        stream.read_exact(&mut read).await.unwrap();
        assert!(read.starts_with(b"HTTP/1.1 100"));
        let address = memory.address;

        let client = async {
            // Nothing more is accepted, and only then does the rest of the request come.
            let refused = async {
                while TcpStream::connect(address).await.is_ok() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(std::time::Duration::from_secs(30), refused)
                .await
                .expect("the listener is closed");
            stream.write_all(body.as_bytes()).await.unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).await.unwrap();
            reply
        };
        let (reply, ()) = tokio::join!(client, memory.stop());
        assert!(reply.starts_with("HTTP/1.1 202 ") && reply.contains("\"ingest_id\":\"id_a\""), "{reply}");

        // It is kept, and the next to start goes on with it.
        memory.restart(&[]).await;
        let again = memory.ingest(ACME, body.clone()).send().await;
        assert_eq!(again.is(202).header("idempotent-replayed"), Some("true"));
        assert!(reply.ends_with(again.text()), "{reply}");
        memory.done(ACME, &again.job_id()).await;
    }
}

#[tokio::test]
async fn idle_connections_do_not_hold_up_the_stop() {
    let mut memory = Memory::start(service::Place::sqlite(), &[]).await;
    let mut silent = TcpStream::connect(memory.address).await.unwrap();
    let mut between = TcpStream::connect(memory.address).await.unwrap();
    between.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut read = [0; 17];
    between.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"HTTP/1.1 200 OK\r\n");
    let stop = tokio::time::timeout(std::time::Duration::from_secs(30), memory.stop());
    stop.await.expect("it stops before clients would time out");
    let mut rest = Vec::new();
    let _ = between.read_to_end(&mut rest).await;
    let _ = silent.read_to_end(&mut rest).await;
}
