//! `POST /v1/nodes/{id}/metrics`, `/logs` and `/audit`: what is accepted, in which order the gates stand, and the budgets.

use std::sync::atomic::Ordering;

use serde_json::json;

use crate::ingest_bodies::{gzip, log_line, sample};
use crate::place::{DOMAIN, KEY_1, KEY_2, KEY_3, NODE_1, NODE_2, NODE_3, Place};

on_every_store!(
    batches_are_accepted_and_written,
    the_gates_stand_in_order,
    the_node_budget_counts_bytes_on_the_wire,
    the_domain_budget_is_capacity_exceeded,
    a_full_buffer_is_503,
);

async fn batches_are_accepted_and_written(place: Place) {
    let fleet = place.start().await;
    let event = json!({"source": "auditd", "action": "open", "outcome": "failure",
        "timestamp": "2025-12-31T23:59:59Z", "pid": 7});
    let metrics = format!("[{},{}]", sample("cpu"), sample("rx_bytes"));
    let logs = format!("{}\n{}\n{}\n", log_line("a"), log_line("b"), log_line("c"));
    for (what, body, records) in [("metrics", metrics, 2), ("logs", logs, 3), ("audit", event.to_string(), 1)]
    {
        let plain = fleet.ingest(NODE_1, KEY_1, what).body(body.clone()).send().await;
        let receipt = plain.is_ok(202).json();
        assert_eq!(receipt, json!({"accepted_at": "2026-01-01T00:00:00Z", "records": records}));
        let identity =
            fleet.ingest(NODE_1, KEY_1, what).header("content-encoding", "identity").body(body.clone());
        identity.send().await.is_ok(202);
        let zipped =
            fleet.ingest(NODE_1, KEY_1, what).header("content-encoding", "gzip").body(gzip(body.as_bytes()));
        zipped.send().await.is_ok(202);
    }
    let lines = fleet.stop().await.lines();
    assert_eq!(lines.len(), 3 * (2 + 3 + 1));
    let audit = lines.last().unwrap();
    assert_eq!(audit["record"], event, "an event keeps whatever else it carries");
    assert_eq!(
        (&audit["kind"], &audit["node_id"], &audit["domain_id"]),
        (&json!("audit"), &json!(NODE_1), &json!(DOMAIN))
    );
    assert_eq!(audit["sent_at"], "2026-01-01T00:00:00.123456789Z");
}

async fn the_gates_stand_in_order(place: Place) {
    let limits = [
        ("FLEET_INGEST_MAX_BODY_BYTES", "1000"),
        ("FLEET_INGEST_NODE_BUDGET", "100B/second burst 1000B"),
        ("FLEET_INGEST_DOMAIN_BUDGET", "100B/second burst 100KB"),
    ];
    let fleet = place.start_with(&limits).await;
    // Each call passes one gate more than the one before it, and fails at the next.
    let at = |node: &str| fleet.post(format!("/v1/nodes/{node}/logs"));
    let (too_large, not_gzip) = (vec![b'x'; 1_001], vec![b'x'; 1_000]);

    let call = || at(NODE_2).header("content-encoding", "br").body(too_large.clone());
    call().send().await.is_problem(401, "unauthorized");
    call().bearer("unknown").send().await.is_problem(401, "nsk_invalid");
    call().bearer(KEY_1).send().await.is_problem(403, "node_id_mismatch");

    let call = || at(NODE_1).bearer(KEY_1).body(too_large.clone());
    call().header("content-encoding", "br").send().await.is_problem(415, "ingest_encoding_unsupported");
    let call = || call().header("content-encoding", "gzip");
    for wrong in [None, Some("yesterday"), Some("1767225600"), Some("2026-01-01T00:00:00")] {
        let call = wrong.map_or(call(), |text| call().header("x-plexsphere-sent-at", text));
        call.send().await.is_problem(400, "ingest_sent_at_invalid");
    }
    let call = || fleet.ingest(NODE_1, KEY_1, "logs").header("content-encoding", "gzip");
    call().body(too_large.clone()).send().await.is_problem(413, "ingest_body_too_large");

    // Nothing was spent so far: the whole burst is there for a body that is no gzip.
    call().body(not_gzip.clone()).send().await.is_problem(400, "ingest_encoding_invalid");
    // It was paid for, and what is not paid for is not looked at.
    let refused = call().body(not_gzip).send().await;
    refused.is_problem(429, "per_node_rate_limited");
    assert_eq!(refused.retry_after(), Some(10));
    call().body(too_large).send().await.is_problem(413, "ingest_body_too_large");

    place.advance(10_000_000);
    call().body(gzip(&vec![b' '; 8_001])).send().await.is_problem(413, "ingest_body_too_large"); // Inflated.
    call().body(gzip(b"{}")).send().await.is_problem(400, "ingest_batch_malformed");
    call().body(gzip(log_line("x").as_bytes())).send().await.is_ok(202);
}

async fn the_node_budget_counts_bytes_on_the_wire(place: Place) {
    let limits =
        [("FLEET_INGEST_MAX_BODY_BYTES", "1000"), ("FLEET_INGEST_NODE_BUDGET", "100B/second burst 1000B")];
    let fleet = place.start_with(&limits).await;
    let logs = |message_bytes: usize| log_line(&"x".repeat(message_bytes));
    let overhead = logs(0).len();
    let send =
        async |bytes: usize| fleet.ingest(NODE_1, KEY_1, "logs").body(logs(bytes - overhead)).send().await;

    send(600).await.is_ok(202);
    let refused = send(600).await;
    refused.is_problem(429, "per_node_rate_limited");
    assert_eq!(refused.retry_after(), Some(2), "200 bytes at 100 a second");
    // A body that compresses well costs what it weighs, not what it holds.
    let body = gzip(vec![logs(500); 10].join("\n").as_bytes());
    assert!(body.len() < 300);
    let zipped = fleet.ingest(NODE_1, KEY_1, "logs").header("content-encoding", "gzip").body(body.clone());
    zipped.send().await.is_ok(202);

    let wait_micros = (200 + body.len() as u64) * 10_000;
    place.advance(wait_micros - 1);
    send(600).await.is_problem(429, "per_node_rate_limited");
    place.advance(1);
    send(600).await.is_ok(202);
    fleet.ingest(NODE_2, KEY_2, "logs").body(logs(100)).send().await.is_ok(202);
}

async fn the_domain_budget_is_capacity_exceeded(place: Place) {
    let limits = [
        ("FLEET_INGEST_MAX_BODY_BYTES", "1000"),
        ("FLEET_INGEST_NODE_BUDGET", "1B/second burst 1000B"),
        ("FLEET_INGEST_DOMAIN_BUDGET", "100B/second burst 1000B"),
    ];
    let fleet = place.start_with(&limits).await;
    let body = |bytes: usize| log_line(&"x".repeat(bytes - log_line("").len()));
    fleet.ingest(NODE_1, KEY_1, "logs").body(body(900)).send().await.is_ok(202);
    for _ in 0..3 {
        let refused = fleet.ingest(NODE_2, KEY_2, "logs").body(body(300)).send().await;
        let problem = refused.is_problem(429, "capacity_exceeded");
        assert_eq!(problem["dimension"], "observability_ingest");
        assert_eq!(refused.retry_after(), Some(2));
    }
    fleet.ingest(NODE_3, KEY_3, "logs").body(body(1_000)).send().await.is_ok(202); // Another domain.

    place.advance(9_000_000);
    // The refusals took nothing from node 2: it has all of its 1,000 bytes.
    fleet.ingest(NODE_2, KEY_2, "logs").body(body(1_000)).send().await.is_ok(202);
}

async fn a_full_buffer_is_503(place: Place) {
    let limits = [("FLEET_INGEST_BUFFER_BYTES", "1048576"), ("FLEET_INGEST_NODE_BUDGET", "16MiB/second")];
    let fleet = place.start_with(&limits).await;
    fleet.sink.broken.store(true, Ordering::SeqCst);
    let body = log_line(&"x".repeat(700_000));
    fleet.ingest(NODE_1, KEY_1, "logs").body(body.clone()).send().await.is_ok(202);
    let refused = fleet.ingest(NODE_1, KEY_1, "logs").body(body).send().await;
    refused.is_problem(503, "ingest_buffer_unavailable");
    assert_eq!(refused.retry_after(), Some(5));
    let metrics = fleet.get("/metrics").send().await;
    let text = String::from_utf8(metrics.is_ok(200).body.to_vec()).unwrap();
    assert!(text.contains("fleet_ingest_records_total 1\n"), "{text}");
    assert!(!text.contains(NODE_1) && !text.contains(DOMAIN), "a label holds an id");

    // What was accepted is written as soon as the disk takes it.
    fleet.sink.broken.store(false, Ordering::SeqCst);
    assert_eq!(fleet.stop().await.lines().len(), 1);
}
