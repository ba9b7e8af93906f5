//! `POST /v1/projects/{project_id}/sessions`: what is issued, the gates, and the domain's budget.

use serde_json::{Value, json};

use crate::client::{Call, verified_claims};
use crate::place::{
    DOMAIN, Fleet, IDENTITY, PROJECT, PROJECT_2, Place, RESOURCE, RESOURCE_2, START_MICROS, TOKEN, TOKEN_2,
};

on_every_store!(a_session_is_issued, a_domains_own_policy_sizes_its_bucket, the_gates_stand_in_order);

impl Fleet {
    /// Asks for a session on the first domain's resource, with members changed or added.
    pub(crate) fn open(&self, token: &str, change: Value) -> Call {
        self.open_at(PROJECT, RESOURCE, token, change)
    }

    pub(crate) fn open_at(&self, project: &str, resource: &str, token: &str, change: Value) -> Call {
        let mut body = json!({"resource_id": resource, "kind": "ssh", "target": {"ssh": {"user": "root"}}});
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        self.post(format!("/v1/projects/{project}/sessions")).bearer(token).body(body.to_string())
    }
}

async fn a_session_is_issued(place: Place) {
    let fleet = place.start().await;
    place.advance(1_234_567);
    let target = json!({"tcp": {"host": "db.internal", "port": 5432}});
    let reply = fleet
        .open(TOKEN, json!({"kind": "tcp", "target": target, "requested_ttl_seconds": 600}))
        .send()
        .await;
    let receipt = reply.is_ok(201).json();
    let session = &receipt["session"];
    let id = receipt["session_id"].as_str().unwrap();
    assert_eq!(reply.header("location"), Some(&*format!("/v1/projects/{PROJECT}/sessions/{id}")));
    assert_eq!(
        (reply.header("idempotent-replayed"), reply.header("cache-control")),
        (None, Some("no-store"))
    );
    assert_eq!(
        *session,
        json!({
            "id": id, "project_id": PROJECT, "domain_id": DOMAIN, "resource_id": RESOURCE, "identity_id": IDENTITY,
            "kind": "tcp", "status": "active", "issued_at": "2026-01-01T00:00:01Z",
            "expires_at": "2026-01-01T00:10:01Z", "last_active_at": "2026-01-01T00:00:01Z", "target": target,
        })
    );
    assert_eq!(receipt["expires_at"], session["expires_at"]);
    let claims = verified_claims(receipt["token"].as_str().unwrap(), &fleet.public_key);
    assert_eq!(
        (&claims["jti"], &claims["sub"], &claims["iss"]),
        (&json!(id), &json!(IDENTITY), &json!("fleet.example"))
    );
    let issued_at = START_MICROS / 1_000_000 + 1;
    assert_eq!((&claims["iat"], &claims["exp"]), (&json!(issued_at), &json!(issued_at + 600)));

    // A longer time than the domain allows is cut to what it does; so is none.
    for ttl in [json!({"requested_ttl_seconds": u64::MAX}), json!({"requested_ttl_seconds": null}), json!({})]
    {
        let receipt = fleet.open(TOKEN, ttl).send().await.is_ok(201).json();
        assert_eq!(receipt["expires_at"], "2026-01-01T01:00:01Z");
        assert_ne!(receipt["session_id"], id);
    }
}

async fn a_domains_own_policy_sizes_its_bucket(place: Place) {
    let fleet = place.start().await;
    let of_policy = async || fleet.open_at(PROJECT_2, RESOURCE_2, TOKEN, json!({})).send().await;
    for _ in 0..2 {
        of_policy().await.is_ok(201);
    }
    let refused = of_policy().await;
    let problem = refused.is_problem(429, "session_limit_exceeded");
    assert!(problem["detail"].as_str().unwrap().contains("access_issuance_domain"), "{problem}");
    assert_eq!(refused.retry_after(), None);

    // The other domain has the shipped budget: ten at once, full again in 5 s. Whoever asks, it is the domain's.
    for token in [TOKEN, TOKEN_2].iter().cycle().take(10) {
        fleet.open(token, json!({})).send().await.is_ok(201);
    }
    let refused = fleet.open(TOKEN_2, json!({})).send().await;
    refused.is_problem(429, "session_limit_exceeded");
    assert_eq!(refused.retry_after(), None);

    place.advance(999_999);
    of_policy().await.is_problem(429, "session_limit_exceeded");
    place.advance(1);
    of_policy().await.is_ok(201);
    place.advance(4_000_000);
    for _ in 0..10 {
        fleet.open(TOKEN, json!({})).send().await.is_ok(201);
    }
    fleet.open(TOKEN, json!({})).send().await.is_problem(429, "session_limit_exceeded");
}

async fn the_gates_stand_in_order(place: Place) {
    let fleet = place.start().await;
    let sessions = |project: &str| fleet.post(format!("/v1/projects/{project}/sessions"));
    sessions("nowhere").body("{").send().await.is_problem(401, "unauthorized");
    sessions("nowhere").bearer("unknown").body("{").send().await.is_problem(401, "unauthorized");
    let urn = format!("urn:uuid:{PROJECT}"); // Was taken for the id.
    for elsewhere in ["nowhere", "%ff", RESOURCE, PROJECT_2, &urn] {
        // The second operator is not allowed on the second project, and learns no more than that.
        sessions(elsewhere).bearer(TOKEN_2).body("{").send().await.is_problem(404, "project_not_found");
    }
    let large = sessions(PROJECT).bearer(TOKEN).body(vec![b' '; 2 << 20]).send().await;
    large.is_problem(413, "body_too_large");
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let twice = r#"{"kind":"ssh","kind":"ssh"}"#;
    for body in [&b""[..], b"{", b"[]", b"null", b"\"\xff\"", deep.as_bytes(), twice.as_bytes()] {
        let reply = sessions(PROJECT).bearer(TOKEN).body(body.to_vec()).send().await;
        reply.is_problem(400, "invalid_body");
    }
    for change in [
        json!({"resource_id": 7}),
        json!({"kind": "vnc"}),
        json!({"requested_ttl_seconds": 0}),
        json!({"requested_ttl_seconds": 1.5}),
        json!({"idempotency_key": ""}),
        json!({"idempotency_key": "x".repeat(256)}),
        json!({"idempotency_key": 7}),
        json!({"unknown": true}),
    ] {
        fleet.open(TOKEN, change).send().await.is_problem(400, "invalid_body");
    }
    let unknown = fleet.open(TOKEN, json!({"unknown": true})).send().await;
    let problem = unknown.is_problem(400, "invalid_body");
    assert!(problem["detail"].as_str().unwrap().contains("unknown field `unknown`"), "{problem}");
    let target = json!({"resource_id": RESOURCE_2, "target": {"tcp": {"host": "a", "port": 1}}});
    fleet.open(TOKEN, target).send().await.is_problem(400, "invalid_target");
    // Another project's resource.
    fleet.open(TOKEN, json!({"resource_id": RESOURCE_2})).send().await.is_problem(404, "resource_not_found");

    // None of that spent anything.
    for _ in 0..10 {
        fleet.open(TOKEN, json!({"idempotency_key": null})).send().await.is_ok(201);
    }
    fleet.open(TOKEN, json!({})).send().await.is_problem(429, "session_limit_exceeded");
    fleet.open(TOKEN, json!({"resource_id": RESOURCE_2})).send().await.is_problem(404, "resource_not_found");
}
