//! What belongs to no operation: unknown paths, methods, correlation ids, probes, metrics.

use http::Method;

use crate::client::Call;
use crate::place::{KEY_1, NODE_1, Place};

#[tokio::test]
async fn unknown_paths_and_methods_are_problems_too() {
    let place = Place::sqlite();
    let fleet = place.start().await;
    for path in ["/", "/v1", "/v1/nodes", &format!("/v1/nodes/{NODE_1}/traces"), "/metrics/x"] {
        fleet.get(path).bearer(KEY_1).send().await.is_problem(404, "not_found");
    }
    for (method, path) in [
        (Method::POST, format!("/v1/nodes/{NODE_1}/secrets/a")),
        (Method::GET, format!("/v1/nodes/{NODE_1}/metrics")),
        (Method::DELETE, "/v1/projects/x/sessions".to_owned()),
        (Method::POST, "/healthz".to_owned()),
    ] {
        let reply = Call::new(fleet.address, method, path).send().await;
        reply.is_problem(405, "method_not_allowed");
        assert!(reply.header("allow").is_some());
    }
}

#[tokio::test]
async fn a_plain_correlation_id_is_taken_over_and_any_other_replaced() {
    let place = Place::sqlite();
    let fleet = place.start().await;
    let send = async |id: &str| fleet.get("/nowhere").header("x-correlation-id", id).send().await;
    let reply = send("trace-1.a_B").await;
    assert_eq!(reply.is_problem(404, "not_found")["correlation_id"], "trace-1.a_B");
    for wrong in ["", "a b", "a\tb", &"x".repeat(129)] {
        let reply = send(wrong).await;
        let problem = reply.is_problem(404, "not_found");
        assert!(problem["correlation_id"].as_str().unwrap().parse::<uuid::Uuid>().is_ok(), "{problem}");
    }
}

#[tokio::test]
async fn probes_and_metrics_answer_without_credentials() {
    let place = Place::sqlite();
    let fleet = place.start().await;
    fleet.get("/healthz").send().await.is_ok(200);
    fleet.get("/readyz").send().await.is_ok(200);
    for _ in 0..11 {
        fleet.read(NODE_1, KEY_1).send().await;
    }
    fleet.get("/nowhere/a").send().await;
    let metrics = fleet.get("/metrics").send().await;
    assert!(metrics.is_ok(200).header("content-type").unwrap().starts_with("application/openmetrics-text"));
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    for line in [
        r#"fleet_requests_total{route="/v1/nodes/{id}/secrets/{name}",status="200"} 10"#,
        r#"fleet_requests_total{route="/v1/nodes/{id}/secrets/{name}",status="429"} 1"#,
        r#"fleet_requests_total{route="",status="404"} 1"#,
        r#"fleet_charges_total{scope="secret_read_node",outcome="granted"} 10"#,
        r#"fleet_charges_total{scope="secret_read_node",outcome="refused"} 1"#,
        r#"fleet_charges_total{scope="secret_read_domain",outcome="withheld"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
