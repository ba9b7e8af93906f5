//! `GET /v1/nodes/{id}/secrets/{name}`.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::client::Reply;
use crate::place::{KEY_1, KEY_1_REVOKED, KEY_2, KEY_3, NODE_1, NODE_2, NODE_3, Place};

on_every_store!(
    a_node_reads_a_secret_sealed_under_its_own_key,
    the_node_budget_admits_its_burst_and_refills,
    the_domain_budget_is_shared_and_its_refusal_takes_nothing_from_the_node,
    the_gates_stand_in_order,
    replicas_share_the_budgets,
);

/// Opens an envelope as a node does: the 32 characters of its key are the AES-256 key.
fn open(reply: &Reply, key: &str) -> Vec<u8> {
    let (nonce, sealed) = reply.body.split_at(12);
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.as_bytes()).unwrap());
    let mut opened = sealed.to_vec();
    let nonce = Nonce::try_assume_unique_for_key(nonce).unwrap();
    key.open_in_place(nonce, Aad::empty(), &mut opened).unwrap().to_vec()
}

async fn a_node_reads_a_secret_sealed_under_its_own_key(place: Place) {
    let fleet = place.start().await;
    for (node, key, key_id) in [(NODE_1, KEY_1, "node-1-current"), (NODE_2, KEY_2, "0f1c04d7cba409e6")] {
        let reply = fleet.read(node, key).send().await;
        assert_eq!(open(reply.is_ok(200), key), b"battery staple");
        assert_eq!(reply.header("content-type"), Some("application/octet-stream"));
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        assert_eq!(reply.header("x-plexsphere-secret-version"), Some("2"));
        assert_eq!(reply.header("x-plexsphere-secret-kid"), Some(key_id));
        assert_eq!(reply.body.len(), 12 + "battery staple".len() + 16);
    }
    let older = fleet.get(format!("/v1/nodes/{NODE_1}/secrets/database-password?version=1")).bearer(KEY_1);
    assert_eq!(open(older.send().await.is_ok(200), KEY_1), b"correct horse");
    let binary = fleet.get(format!("/v1/nodes/{NODE_1}/secrets/tls-key")).bearer(KEY_1).send().await;
    assert_eq!(open(binary.is_ok(200), KEY_1), [0, 1, 2, 3, 4, 5, 6, 7]);
}

async fn the_node_budget_admits_its_burst_and_refills(place: Place) {
    let fleet = place.start().await;
    let read = async || fleet.read(NODE_1, KEY_1).send().await;
    for _ in 0..10 {
        read().await.is_ok(200);
    }
    for _ in 0..3 {
        let refused = read().await;
        refused.is_problem(429, "per_node_rate_limited");
        assert_eq!(refused.retry_after(), Some(1), "a fifth of a second, rounded up");
    }
    fleet.read(NODE_2, KEY_2).send().await.is_ok(200);

    place.advance(199_999);
    read().await.is_problem(429, "per_node_rate_limited");
    place.advance(1); // Refusals did not move the refill: five a second.
    read().await.is_ok(200);
    read().await.is_problem(429, "per_node_rate_limited");
    place.advance(2_000_000); // The shipped budget is full again in 2 s.
    for _ in 0..10 {
        read().await.is_ok(200);
    }
    read().await.is_problem(429, "per_node_rate_limited");
}

async fn the_domain_budget_is_shared_and_its_refusal_takes_nothing_from_the_node(place: Place) {
    let budgets = [
        ("FLEET_SECRET_READ_NODE_BUDGET", "5/hour"),
        ("FLEET_SECRET_READ_DOMAIN_BUDGET", "1/second burst 3"),
    ];
    let fleet = place.start_with(&budgets).await;
    for (node, key) in [(NODE_1, KEY_1), (NODE_2, KEY_2), (NODE_1, KEY_1)] {
        fleet.read(node, key).send().await.is_ok(200);
    }
    for _ in 0..10 {
        let refused = fleet.read(NODE_1, KEY_1).send().await;
        refused.is_problem(429, "per_domain_rate_limited");
        assert_eq!(refused.retry_after(), Some(1));
    }
    fleet
        .get(format!("/v1/nodes/{NODE_3}/secrets/x"))
        .bearer(KEY_3)
        .send()
        .await
        .is_problem(404, "secret_not_found");

    // Node 1 spent two of its five; the ten refusals cost it nothing.
    for _ in 0..3 {
        place.advance(1_000_000);
        fleet.read(NODE_1, KEY_1).send().await.is_ok(200);
    }
    let refused = fleet.read(NODE_1, KEY_1).send().await;
    refused.is_problem(429, "per_node_rate_limited"); // Both refuse; the longer wait is told.
    assert_eq!(refused.retry_after(), Some(717), "an hour for five, three seconds of it gone");
    fleet.read(NODE_2, KEY_2).send().await.is_problem(429, "per_domain_rate_limited");
}

async fn the_gates_stand_in_order(place: Place) {
    let fleet = place.start().await;
    let path = |id: &str, name: &str| format!("/v1/nodes/{id}/secrets/{name}");
    let unknown_key = "x".repeat(32);

    // Whatever comes later is wrong as well. Nothing here takes from a budget, however often.
    for _ in 0..12 {
        fleet.get(path(NODE_2, "No!")).send().await.is_problem(401, "unauthorized");
        for malformed in
            ["Bearer", "Bearer ", "Basic dTpw", "Bearer a b", &format!("Bearer {}", "x".repeat(600))]
        {
            let reply = fleet.get(path(NODE_2, "No!")).header("authorization", malformed).send().await;
            reply.is_problem(401, "unauthorized");
        }
        let twice = fleet.get(path(NODE_1, "tls-key")).bearer(KEY_1).bearer(KEY_1);
        twice.send().await.is_problem(401, "unauthorized");
        fleet.get(path(NODE_2, "No!")).bearer(&unknown_key).send().await.is_problem(401, "nsk_invalid");
        fleet.get(path(NODE_2, "No!")).bearer(KEY_1_REVOKED).send().await.is_problem(401, "nsk_revoked");
        // The last three were taken for the id: its other forms.
        let (urn, braces, plain) =
            (format!("urn:uuid:{NODE_1}"), format!("%7B{NODE_1}%7D"), NODE_1.replace('-', ""));
        for id in [NODE_2, "me", "%ff", "5d3c2a10", &urn, &braces, &plain] {
            fleet.get(path(id, "No!")).bearer(KEY_1).send().await.is_problem(403, "node_id_mismatch");
        }
    }
    // What does not resolve has been paid for.
    fleet.get(path(NODE_1, "No!")).bearer(KEY_1).send().await.is_problem(404, "secret_not_found");
    fleet.get(path(NODE_1, "absent")).bearer(KEY_1).send().await.is_problem(404, "secret_not_found");
    let not_allowed = fleet.get(path(NODE_2, "tls-key?version=9")).bearer(KEY_2).send().await;
    not_allowed.is_problem(403, "permission_denied");
    let no_version = fleet.get(path(NODE_1, "tls-key?version=9")).bearer(KEY_1).send().await;
    no_version.is_problem(404, "secret_version_not_found");
    fleet
        .get(path(NODE_1, "tls-key?version=x"))
        .bearer(KEY_1)
        .send()
        .await
        .is_problem(400, "invalid_version");
    for _ in 4..10 {
        fleet.read(NODE_1, KEY_1).send().await.is_ok(200);
    }
    fleet.get(path(NODE_1, "absent")).bearer(KEY_1).send().await.is_problem(429, "per_node_rate_limited");
}

async fn replicas_share_the_budgets(place: Place) {
    let (one, other) = (place.start().await, place.start().await);
    for fleet in [&one, &other].iter().cycle().take(10) {
        fleet.read(NODE_1, KEY_1).send().await.is_ok(200);
    }
    for fleet in [&one, &other] {
        fleet.read(NODE_1, KEY_1).send().await.is_problem(429, "per_node_rate_limited");
    }
    one.stop().await;
    other.stop().await;
    // And a restart forgets nothing.
    let again = place.start().await;
    again.read(NODE_1, KEY_1).send().await.is_problem(429, "per_node_rate_limited");
}
