//! One session per (identity, idempotency key).

use std::collections::HashSet;

use admit::idempotency::{Claim, Fingerprint, Terms};
use admit::{Clock, IdempotencyStore, Now};
use fleet_api::access::persistence::record_key;
use fleet_api::access::{IdempotencyKey, SessionRequest};
use fleet_api::fleet::IdentityId;
use serde_json::{Value, json};

use crate::place::{IDENTITY, PROJECT_2, Place, RESOURCE, RESOURCE_2, TOKEN, TOKEN_2};

on_every_store!(
    a_key_leads_to_the_session_it_first_led_to,
    a_key_in_flight_is_a_conflict,
    of_concurrent_requests_with_one_key_one_issues,
    a_client_that_hangs_up_does_not_block_its_key,
    sessions_outlive_the_process_and_tokens_are_stored_nowhere,
);

fn key(text: &str) -> Value {
    json!({"idempotency_key": text})
}

async fn a_key_leads_to_the_session_it_first_led_to(place: Place) {
    let fleet = place.start().await;
    let longest = "k".repeat(255);
    let open = async |change: Value| fleet.open_at(PROJECT_2, RESOURCE_2, TOKEN, change).send().await;
    let first = open(key(&longest)).await.is_ok(201).json();
    place.advance(2_000_000);
    for _ in 0..5 {
        // More than the domain's budget of two: a replay spends nothing.
        let again = open(key(&longest)).await;
        assert_eq!(again.is_ok(201).json(), first, "session, times and token");
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
        let id = first["session_id"].as_str().unwrap();
        assert!(again.header("location").unwrap().ends_with(id));
    }
    let mut other_request = key(&longest);
    other_request["requested_ttl_seconds"] = json!(60);
    open(other_request).await.is_problem(422, "idempotency_key_reused");

    // Another key, and the same key of another identity, are other sessions.
    let ids: HashSet<String> = [
        fleet.open(TOKEN, key("a")).send().await,
        fleet.open(TOKEN, key("b")).send().await,
        fleet.open(TOKEN_2, key("a")).send().await,
    ]
    .iter()
    .map(|reply| reply.is_ok(201).json()["session_id"].to_string())
    .collect();
    assert_eq!(ids.len(), 3);

    for _ in 0..2 {
        open(json!({})).await.is_ok(201); // The replays left the budget whole.
    }
    open(key("new")).await.is_problem(429, "session_limit_exceeded");
    open(key(&longest)).await.is_ok(201); // A replay is answered even then.

    place.advance(86_400_000_000);
    let anew = open(key(&longest)).await;
    assert_ne!(anew.is_ok(201).json()["session_id"], first["session_id"], "a key is kept for 24 hours");
}

async fn a_key_in_flight_is_a_conflict(place: Place) {
    let fleet = place.start().await;
    let identity = IdentityId::new(IDENTITY.parse().unwrap());
    let name = record_key(&IdempotencyKey { identity, text: "busy".to_owned() });
    let body =
        json!({"resource_id": RESOURCE, "kind": "ssh", "target": {"ssh": {"user": "root"}}}).to_string();
    let request = SessionRequest::parse(body.as_bytes()).unwrap();
    let (fingerprint, terms) = (Fingerprint::of(serde_json::to_vec(&request).unwrap()), Terms::default());
    let now = || Now::At(place.clock.now());
    let claim = fleet.store.claim(&name, &fingerprint, &terms, now()).await.unwrap();
    assert!(matches!(claim, Claim::Run(_)));
    for _ in 0..20 {
        fleet.open(TOKEN, key("busy")).send().await.is_problem(409, "idempotent_replay");
    }
    for _ in 0..9 {
        fleet.open(TOKEN, json!({})).send().await.is_ok(201); // The conflicts spent nothing.
    }
    place.advance(60_000_000); // The lease of a run that died.
    fleet.open(TOKEN, key("busy")).send().await.is_ok(201);
}

async fn of_concurrent_requests_with_one_key_one_issues(place: Place) {
    let fleet = place.start().await;
    let calls: Vec<_> = (0..10).map(|_| tokio::spawn(fleet.open(TOKEN, key("at once")).send())).collect();
    let (mut sessions, mut issued) = (HashSet::new(), 0);
    for call in calls {
        let reply = call.await.unwrap();
        if reply.status == 409 {
            reply.is_problem(409, "idempotent_replay");
            continue;
        }
        let receipt = reply.is_ok(201).json();
        sessions.insert((receipt["session_id"].to_string(), receipt["token"].to_string()));
        issued += usize::from(reply.header("idempotent-replayed").is_none());
    }
    assert_eq!((sessions.len(), issued), (1, 1));
    for _ in 0..9 {
        fleet.open(TOKEN, json!({})).send().await.is_ok(201); // One of ten was spent: what did not issue was given back.
    }
    fleet.open(TOKEN, json!({})).send().await.is_problem(429, "session_limit_exceeded");
}

async fn a_client_that_hangs_up_does_not_block_its_key(place: Place) {
    let fleet = place.start_with(&[("FLEET_ACCESS_ISSUANCE_DOMAIN_BUDGET", "1000/second")]).await;
    for round in 0..30 {
        let change = key(&format!("round {round}"));
        let hung_up = tokio::spawn(fleet.open(TOKEN, change.clone()).send());
        for _ in 0..round {
            tokio::task::yield_now().await; // Each round hangs up a little later.
        }
        hung_up.abort();
        // The clock stands still, so a key whose run was dropped with its connection would stay in flight for good.
        let mut answered = false;
        for _ in 0..1_000 {
            let retry = fleet.open(TOKEN, change.clone()).send().await;
            if retry.status != 409 {
                retry.is_ok(201);
                answered = true;
                break;
            }
        }
        assert!(answered, "a run that was dropped with its connection blocks its key");
    }
}

async fn sessions_outlive_the_process_and_tokens_are_stored_nowhere(place: Place) {
    let fleet = place.start().await;
    let first = fleet.open(TOKEN, key("kept")).send().await.is_ok(201).json();
    fleet.stop().await;
    let fleet = place.start().await;
    let again = fleet.open(TOKEN, key("kept")).send().await;
    assert_eq!(again.is_ok(201).json(), first);

    // Read while the fleet runs: SQLite removes its log when the last connection closes, at a moment of its own.
    let token = first["token"].as_str().unwrap();
    let signature = token.rsplit_once('.').unwrap().1;
    let stored = match &place.postgres {
        Some(postgres) => {
            let rows =
                "SELECT string_agg(convert_from(body, 'UTF8'), '') FROM plexsphere.idempotency_records";
            postgres.psql(rows).unwrap().into_bytes()
        }
        None => {
            let files = std::fs::read_dir(place.directory.path()).unwrap();
            files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
        }
    };
    let holds = |needle: &str| stored.windows(needle.len()).any(|window| window == needle.as_bytes());
    assert!(holds(first["session_id"].as_str().unwrap()));
    assert!(!holds(signature) && !holds(TOKEN));
    fleet.stop().await;
}
