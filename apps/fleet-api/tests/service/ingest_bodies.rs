//! Bodies of batches, and what is wrong with most of them.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::place::{KEY_1, NODE_1, Place};

pub(crate) fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn sample(name: &str) -> String {
    json!({"group": "node_resources", "name": name, "value": 23.5, "timestamp": "2025-12-31T23:59:59Z"})
        .to_string()
}

pub(crate) fn log_line(message: &str) -> String {
    json!({"severity": "info", "message": message, "timestamp": "2025-12-31T23:59:59Z"}).to_string()
}

const PLENTY: [(&str, &str); 2] =
    [("FLEET_INGEST_NODE_BUDGET", "1GiB/second"), ("FLEET_INGEST_DOMAIN_BUDGET", "1GiB/second")];

#[tokio::test]
async fn a_wrong_record_refuses_the_whole_batch() {
    let place = Place::sqlite();
    let fleet = place.start_with(&PLENTY).await;
    let good = log_line("good");
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(500), "]".repeat(500));
    let event = |rest: &str| {
        format!(r#"{{"source":"k8s","action":"a","outcome":"b","timestamp":"2026-01-01T00:00:00Z",{rest}}}"#)
    };
    let malformed: Vec<(&str, Vec<u8>)> = vec![
        ("metrics", b"".to_vec()),
        ("metrics", b"[]".to_vec()),
        ("metrics", b"{}".to_vec()),
        ("metrics", b"[".to_vec()),
        ("metrics", b"[{\"group\":\"node_resources\"}]".to_vec()),
        ("metrics", format!("[{},{}]", sample("a"), sample("b").replace("23.5", "\"23.5\"")).into_bytes()),
        ("metrics", format!("[{}]", sample("a").replace("node_resources", "weather")).into_bytes()),
        ("metrics", format!("[{}]", sample("")).into_bytes()),
        (
            "metrics",
            format!("[{}]", sample("a").replace("\"value\":23.5", "\"value\":1,\"value\":2")).into_bytes(),
        ),
        (
            "metrics",
            format!("[{}]", sample("a").replace("2025-12-31T23:59:59Z", "0001-01-01T00:00:00Z")).into_bytes(),
        ),
        ("metrics", deep.clone().into_bytes()),
        ("logs", b"\n".to_vec()),
        ("logs", format!("{good}\n\n{good}").into_bytes()),
        ("logs", format!("{good}\n{{").into_bytes()),
        ("logs", format!("{good}\nnull").into_bytes()),
        ("logs", [good.as_bytes(), b"\n{\"severity\":\"info\",\"message\":\"\xff\"}"].concat()),
        ("logs", good.replace("\"info\"", "\"fatal\"").into_bytes()),
        ("logs", good.replace("\"good\"", "7").into_bytes()),
        ("logs", sample("a").into_bytes()),
        ("audit", good.clone().into_bytes()),
        ("audit", event("\"x\":{\"y\":1,\"y\":2}").into_bytes()),
        ("audit", event(&format!("\"x\":{deep}")).into_bytes()),
        ("audit", event("\"x\":1").replace("k8s", "bsm").into_bytes()),
    ];
    for (what, body) in malformed {
        let shown = String::from_utf8_lossy(&body).chars().take(100).collect::<String>();
        let reply = fleet.ingest(NODE_1, KEY_1, what).body(body).send().await;
        assert_eq!(reply.status, 400, "{what}: {shown}");
        let problem = reply.is_problem(400, "ingest_batch_malformed");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.len() < 500 && !detail.contains("src/"), "{detail}");
    }
    let third = fleet.ingest(NODE_1, KEY_1, "logs").body(format!("{good}\n{good}\n7"));
    let problem = third.send().await.is_problem(400, "ingest_batch_malformed");
    assert!(problem["detail"].as_str().unwrap().starts_with("line 3: "), "{problem}");
    assert!(fleet.stop().await.lines().is_empty());
}

#[tokio::test]
async fn sizes_are_bounded_on_the_wire_inflated_and_in_records() {
    let place = Place::sqlite();
    let fleet = place.start_with(&PLENTY).await;
    let logs = || fleet.ingest(NODE_1, KEY_1, "logs");
    logs().body(vec![b'x'; 2 << 20]).send().await.is_problem(413, "ingest_body_too_large");
    logs().body(vec![b'x'; 1 << 20]).send().await.is_problem(400, "ingest_batch_malformed");

    let bomb = gzip(&vec![0; 256 << 20]);
    assert!(bomb.len() < 1 << 20);
    let bomb = logs().header("content-encoding", "gzip").body(bomb);
    bomb.send().await.is_problem(413, "ingest_body_too_large");

    let whole = gzip(log_line("x").as_bytes());
    for cut in [0, 5, 12, whole.len() / 2, whole.len() - 1] {
        let truncated = logs().header("content-encoding", "gzip").body(whole[..cut].to_vec());
        truncated.send().await.is_problem(400, "ingest_encoding_invalid");
    }
    for encoding in ["deflate", "gzip, gzip", "", "zstd"] {
        let reply = logs().header("content-encoding", encoding).body(whole.clone()).send().await;
        reply.is_problem(415, "ingest_encoding_unsupported");
    }
    let lines = vec![log_line("x"); 10_001].join("\n");
    let logs_of = |lines: &str| logs().header("content-encoding", "GZIP").body(gzip(lines.as_bytes()));
    logs_of(&lines).send().await.is_problem(413, "ingest_batch_too_many_records");
    let (most, _) = lines.rsplit_once('\n').unwrap();
    assert_eq!(logs_of(most).send().await.is_ok(202).json()["records"], 10_000);
    let samples = format!("[{}]", vec![sample("a"); 10_001].join(","));
    let metrics = fleet.ingest(NODE_1, KEY_1, "metrics").header("content-encoding", "gzip");
    metrics.body(gzip(samples.as_bytes())).send().await.is_problem(413, "ingest_batch_too_many_records");
}
