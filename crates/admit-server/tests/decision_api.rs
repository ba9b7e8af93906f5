//! The decision API, asked as a service in another language asks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::sync::Arc;

use admit::idempotency::{Claim, Fingerprint, RecordKey, Terms};
use admit::{IdempotencyStore, Now};
use admit_listen::Peer;
use admit_server::Front;
use admit_server::gateway::Gateway;
use admit_server::metrics::Metrics;
use admit_server::policy::{Keys, Policy};
use admit_store::AnyStore;
use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use data_encoding::HEXLOWER;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tower::ServiceExt;

const POLICY: &str = r#"
    scopes = ["exports"]
    [budgets.hourly]
    rate = "2/hour"
    by = "header:x-user"
    plans = { pro = "4/hour" }
    tenants = { acme = "8/hour" }
    [budgets.burst]
    rate = "5/second burst 3"
    by = "const:all"
    [budgets.tokens]
    rate = "1000/hour"
    by = "header:x-user"
    cost = "json:/max_tokens"
    [budgets.watched]
    rate = "1/hour"
    by = "header:x-user"
    mode = "shadow"
"#;

async fn service(policy: &str) -> Router {
    service_and_store(policy).await.0
}

async fn service_and_store(policy: &str) -> (Router, AnyStore) {
    let policy = Policy::parse("test", policy).unwrap_or_else(|errors| panic!("{:?}", errors.problems()));
    let opened = AnyStore::open("memory:", policy.rules().unwrap()).await.unwrap();
    let store = opened.clone();
    let metrics = Metrics::default();
    let gateway = Gateway::new(&policy, metrics.clone()).unwrap();
    let front = Front::new(Arc::new(policy), Arc::new(Keys::default()), store, metrics);
    let router = match gateway {
        Some(gateway) => front.in_front_of(gateway),
        None => front.decide(),
    };
    (router.layer(Extension(Peer(SocketAddr::from(([127, 0, 0, 1], 7))))), opened)
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

async fn post(service: &Router, path: &str, body: &Value) -> Answer {
    send(service, Request::post(path), body.to_string()).await
}

async fn send(service: &Router, request: http::request::Builder, body: String) -> Answer {
    let request = request.header("host", "admit.test").header("content-type", "application/json");
    let request = request.body(Body::from(body)).unwrap();
    let (head, body) = service.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Answer { status: head.status.as_u16(), headers: head.headers, body }
}

#[tokio::test]
async fn charges_are_taken_looked_at_and_given_back() {
    let service = service(POLICY).await;
    let ann = json!({"budget": "hourly", "key": "ann"});
    let taken = post(&service, "/v1/take", &ann).await;
    assert_eq!(taken.status, 200);
    assert_eq!(
        taken.body,
        json!({"granted": true, "charged": true, "charges":
            [{"scope": "hourly", "mode": "enforce", "left": 1.0, "full_after_seconds": 1_800}]})
    );
    assert_eq!(taken.headers["ratelimit"], "\"hourly\";r=1;t=1800");
    let both = json!({"charges": [ann, {"budget": "burst", "cost": 2}]});
    let taken = post(&service, "/v1/take", &both).await;
    assert_eq!((taken.status, &taken.body["charges"][1]["left"]), (200, &json!(1.0)));
    let refused = post(&service, "/v1/take", &both).await;
    assert_eq!((refused.status, &refused.headers["retry-after"]), (429, &"1800".parse().unwrap()));
    assert_eq!(refused.body["violated-policies"], json!(["hourly", "burst"]));

    let peeked = post(&service, "/v1/peek", &ann).await;
    assert_eq!((peeked.status, &peeked.body["fits"]), (200, &json!(false)));
    assert_eq!(peeked.body["charges"][0]["wait_seconds"], peeked.body["retry_after_seconds"]);
    assert_eq!(post(&service, "/v1/refund", &ann).await.status, 204);
    let peeked = post(&service, "/v1/peek", &ann).await;
    assert_eq!(peeked.body["fits"], true);
    assert!(peeked.body["charges"][0]["tokens"].as_f64().unwrap() >= 1.0);
    let never = json!({"budget": "hourly", "key": "bob", "cost": 3});
    assert_eq!(post(&service, "/v1/peek", &never).await.body["never_fits"], true);
    let refused = post(&service, "/v1/take", &never).await;
    assert_eq!((refused.status, refused.headers.get("retry-after")), (429, None));
    assert!(refused.body["detail"].as_str().unwrap().contains("never fits"));
}

#[tokio::test]
async fn a_plan_sizes_a_budget_and_a_shadow_refuses_nobody() {
    let service = service(POLICY).await;
    let pro = json!({"charges": [{"budget": "hourly", "key": "ann", "plan": "pro"}, {"budget": "watched", "key": "ann"}]});
    for left in [3.0, 2.0, 1.0] {
        let taken = post(&service, "/v1/take", &pro).await;
        assert!((left..left + 0.01).contains(&taken.body["charges"][0]["left"].as_f64().unwrap()));
        assert_eq!(taken.body["charges"][1]["mode"], "shadow");
    }
}

/// A caller has one bucket whatever its plan and its tenant: another plan is another size, and no fresh burst.
#[tokio::test]
async fn debts_stay_when_a_caller_names_another_plan_or_tenant() {
    let service = service(POLICY).await;
    let ask = async |key: &str, who: Value| {
        let mut call = json!({"budget": "hourly", "key": key});
        call.as_object_mut().unwrap().extend(who.as_object().unwrap().clone());
        let answer = post(&service, "/v1/take", &call).await;
        (answer.status, answer.body["charges"][0]["left"].as_f64().map(f64::floor))
    };
    let (free, pro, acme) = (json!({}), json!({"plan": "pro"}), json!({"tenant": "acme", "plan": "pro"}));
    assert_eq!(ask("ann", free.clone()).await, (200, Some(1.0)));
    assert_eq!(ask("ann", free.clone()).await, (200, Some(0.0)));
    for who in [&free, &pro, &acme] {
        assert_eq!(ask("ann", who.clone()).await.0, 429, "{who}");
    }
    // Its tenant's own size stands before its plan's, and a smaller one clamps at once.
    assert_eq!(ask("bob", acme).await, (200, Some(7.0)));
    assert_eq!(ask("bob", pro).await, (200, Some(3.0)));
    assert_eq!(ask("bob", free).await, (200, Some(1.0)));
}

#[tokio::test]
async fn a_budget_may_travel_with_the_call() {
    let service = service(POLICY).await;
    let words = |rate: &str| json!({"scope": "exports", "key": "ann", "rate": rate});
    let taken = post(&service, "/v1/take", &words("100/hour burst 20")).await;
    assert_eq!(taken.body["charges"][0]["left"], 19.0);
    let numbers = json!({"scope": "exports", "key": "bob", "rate": 0.5, "burst": 7, "cost": 2.5});
    assert_eq!(post(&service, "/v1/take", &numbers).await.body["charges"][0]["left"], 4.5);
    // A lowered burst holds at once, as the budget is not stored.
    assert_eq!(post(&service, "/v1/take", &words("100/hour burst 3")).await.body["charges"][0]["left"], 2.0);
}

#[tokio::test]
async fn what_is_wrong_is_told_with_its_place_and_what_would_be_right() {
    let service = service(POLICY).await;
    let scope = |members: Value| {
        let mut charge = json!({"scope": "exports", "key": "k", "rate": "1/second"});
        charge.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        charge
    };
    let many = vec![json!({"budget": "burst"}); 65];
    for (body, status, pointer, detail) in [
        (json!([]), 400, "", "no object"),
        (json!({}), 400, "", "neither a budget"),
        (json!({"charges": {}}), 400, "/charges", "no list"),
        (json!({"charges": []}), 400, "/charges", "1 to 64"),
        (json!({"charges": many}), 400, "/charges", "65 charges"),
        (json!({"charges": [{"budget": "burst"}], "a/b": 1}), 400, "/a~1b", "nothing"),
        (json!({"charges": [{"budget": "burst"}, 7]}), 400, "/charges/1", "no object"),
        (json!({"budget": "hourly", "key": "a", "kost": 1}), 400, "/kost", "`cost`"),
        (json!({"budget": "hourly", "key": 7}), 400, "/key", "a text"),
        (json!({"budget": "hourly", "key": null}), 400, "/key", "a text"),
        (json!({"budget": "hourly", "key": "a", "cost": -1}), 400, "/cost", "negative"),
        (json!({"budget": "hourly", "key": "x".repeat(1_025)}), 400, "/key", "1 to 1024"),
        (json!({"budget": "hurly", "key": "a"}), 422, "/budget", "did you mean \"hourly\"?"),
        (json!({"budget": "hourly"}), 422, "/key", "1 part, and this has 0"),
        (json!({"budget": "burst", "key": "a"}), 422, "/key", "0 parts, and this has 1"),
        (json!({"budget": "tokens", "key": "a"}), 422, "/cost", "has to say it"),
        (scope(json!({"scope": "export"})), 422, "/scope", "did you mean \"exports\"?"),
        (scope(json!({"scope": "hourly"})), 422, "/scope", "write \"budget\": \"hourly\""),
        (scope(json!({"rate": 1})), 422, "/rate", "needs a burst"),
        (scope(json!({"burst": 1})), 422, "/burst", "there"),
        (scope(json!({"rate": "fast"})), 422, "/rate", "not a rate"),
        (scope(json!({"rate": 0, "burst": 1})), 422, "/rate", "not a rate"),
        (scope(json!({"rate": "1/day"})), 422, "", "set the retention"),
        (
            json!({"charges": [scope(json!({})), scope(json!({"rate": "2/second"}))]}),
            422,
            "/charges",
            "disagree",
        ),
    ] {
        for path in ["/v1/take", "/v1/peek", "/v1/refund"] {
            let answer = post(&service, path, &body).await;
            let told = (answer.status, answer.body["pointer"].as_str());
            assert_eq!(told, (status, Some(pointer)), "{path} {body}: {}", answer.body);
            assert!(answer.body["detail"].as_str().unwrap().contains(detail), "{}", answer.body);
            assert_eq!(answer.headers["content-type"], "application/problem+json");
        }
    }
    for (body, detail) in
        [("{", "not valid JSON"), (r#"{"budget":"burst","budget":"burst"}"#, "stands twice")]
    {
        let answer = send(&service, Request::post("/v1/take"), body.into()).await;
        assert_eq!((answer.status, &answer.body["pointer"]), (400, &json!("")));
        assert!(answer.body["detail"].as_str().unwrap().contains(detail), "{}", answer.body);
    }
    let large = "x".repeat(600 << 10);
    assert_eq!(send(&service, Request::post("/v1/take"), large).await.status, 413);
    let plain =
        Request::post("/v1/take").header("content-type", "text/plain").body(Body::from("{}")).unwrap();
    assert_eq!(service.clone().oneshot(plain).await.unwrap().status(), 415);
    let get = Request::get("/v1/take").body(Body::empty()).unwrap();
    let answer = service.clone().oneshot(get).await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["allow"]), (405, &"POST".parse().unwrap()));
}

#[tokio::test]
async fn a_key_runs_once_and_replays() {
    let service = service(POLICY).await;
    let claim = |fingerprint: &str| json!({"tenant": "acme", "operation": "POST /orders", "key": "7", "fingerprint": fingerprint});
    let claimed = post(&service, "/v1/idempotency/claim", &claim("a")).await;
    assert_eq!((claimed.status, &claimed.body["outcome"]), (200, &json!("run")));
    assert_eq!(claimed.body["lease_seconds"], 60);
    let in_flight = post(&service, "/v1/idempotency/claim", &claim("a")).await;
    assert_eq!((in_flight.status, &in_flight.headers["retry-after"]), (409, &"1".parse().unwrap()));
    assert_eq!(in_flight.body["error"], "idempotency_in_flight");

    let renewed = post(&service, "/v1/idempotency/renew", &json!({"ticket": claimed.body["ticket"]})).await;
    let ticket = &renewed.body["ticket"];
    let complete = json!({"ticket": ticket, "status": 201, "body": "é",
        "headers": {"Location": "/orders/7", "Set-Cookie": "s", "Link": "<a>; rel=x"}});
    let completed = post(&service, "/v1/idempotency/complete", &complete).await;
    assert_eq!((completed.status, &completed.body), (200, &json!({"recorded": "response"})));
    let lost = post(&service, "/v1/idempotency/complete", &complete).await;
    assert_eq!((lost.status, &lost.body["error"]), (409, &json!("idempotency_ticket_lost")));

    let replayed = post(&service, "/v1/idempotency/claim", &claim("a")).await;
    assert_eq!(
        replayed.body,
        json!({"outcome": "replay", "status": 201, "body": "é",
            "headers": {"location": "/orders/7", "link": "<a>; rel=x"}})
    );
    let mismatch = post(&service, "/v1/idempotency/claim", &claim("b")).await;
    assert_eq!((mismatch.status, &mismatch.body["error"]), (422, &json!("idempotency_key_reused")));
}

#[tokio::test]
async fn what_is_not_kept_or_not_text_is_told_so() {
    let service = service(POLICY).await;
    let claim = |key: &str| json!({"tenant": "t", "operation": "o", "key": key, "fingerprint": "f"});
    for (key, complete, recorded, then) in [
        ("bytes", json!({"status": 200, "body_base64": "/wA="}), "response", (200, "/wA=")),
        ("large", json!({"status": 200, "body": "x".repeat((1 << 20) + 1)}), "tombstone", (409, "")),
        ("failed", json!({"status": 503}), "nothing", (200, "")),
    ] {
        let mut complete = complete;
        complete["ticket"] =
            post(&service, "/v1/idempotency/claim", &claim(key)).await.body["ticket"].clone();
        let completed = post(&service, "/v1/idempotency/complete", &complete).await;
        assert_eq!(completed.body, json!({"recorded": recorded}), "{key}");
        let again = post(&service, "/v1/idempotency/claim", &claim(key)).await;
        let body = again.body["body_base64"].as_str().unwrap_or_default();
        assert_eq!((again.status, body), then, "{key}: {}", again.body);
    }
    let claimed = post(&service, "/v1/idempotency/claim", &claim("released")).await;
    let release = json!({"ticket": claimed.body["ticket"]});
    assert_eq!(post(&service, "/v1/idempotency/release", &release).await.status, 204);
    assert_eq!(post(&service, "/v1/idempotency/release", &release).await.status, 409);
    assert_eq!(post(&service, "/v1/idempotency/claim", &claim("released")).await.body["outcome"], "run");
    for (member, value, pointer) in [
        ("ticket", json!("none"), "/ticket"),
        ("status", json!(101), "/status"),
        ("headers", json!({"a b": "c"}), "/headers/a b"),
        ("headers", json!({"a": "\u{84}"}), "/headers/a"),
        ("body_base64", json!("%"), "/body_base64"),
        // They were taken, and a replay would have had a body where HTTP has none.
        ("body", json!("none"), "/body"),
        ("body_base64", json!("YQ=="), "/body_base64"),
    ] {
        let status = if pointer.starts_with("/body") && value != "%" { 204 } else { 200 };
        let mut complete = json!({"ticket": release["ticket"], "status": status});
        complete[member] = value;
        let answer = post(&service, "/v1/idempotency/complete", &complete).await;
        assert_eq!((answer.status, &answer.body["pointer"]), (400, &json!(pointer)), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_token_is_needed_where_there_are_some() {
    let digest = HEXLOWER.encode(&Sha256::digest("t1"));
    let service = service(&format!("decision_tokens = [\"{digest}\"]\n{POLICY}")).await;
    let take = || json!({"budget": "hourly", "key": "ann"}).to_string();
    for (sent, status) in
        [(None, 401), (Some("Bearer t2"), 401), (Some("Basic t1"), 401), (Some("bearer t1"), 200)]
    {
        let request = Request::post("/v1/take");
        let request = match sent {
            Some(sent) => request.header("authorization", sent),
            None => request,
        };
        let answer = send(&service, request, take()).await;
        assert_eq!(answer.status, status, "{sent:?}");
        assert_eq!(answer.headers.contains_key("www-authenticate"), status == 401);
    }
    assert_eq!(send(&service, Request::get("/authorize"), String::new()).await.status, 200);
    assert_eq!(send(&service, Request::get("/openapi.json"), String::new()).await.status, 200);
}

/// A decision API that a gateway's callers could reach would let them spend anyone's budgets.
#[tokio::test]
async fn behind_a_gateway_decisions_are_only_under_the_prefix_that_the_policy_names() {
    let closed = "upstream = \"http://127.0.0.1:1\""; // Nobody listens there, so the gateway answers 502.
    let gateway = service(&format!("{closed}\n{POLICY}")).await;
    for path in ["/v1/take", "/authorize", "/json", "/openapi.json", "/grpc.health.v1.Health/Check"] {
        assert_eq!(post(&gateway, path, &json!({"budget": "burst"})).await.status, 502, "{path}");
    }
    let gateway = service(&format!("{closed}\ndecisions = \"/internal/admit\"\n{POLICY}")).await;
    let take = post(&gateway, "/internal/admit/v1/take", &json!({"budget": "burst"})).await;
    assert_eq!((take.status, &take.body["granted"]), (200, &json!(true)));
    assert_eq!(send(&gateway, Request::get("/internal/admit/authorize/a"), String::new()).await.status, 200);
    let document = send(&gateway, Request::get("/internal/admit/openapi.json"), String::new()).await.body;
    assert_eq!(document["servers"][0]["url"], "/internal/admit");
    for path in ["/v1/take", "/internal/admit/none"] {
        assert_eq!(post(&gateway, path, &json!({"budget": "burst"})).await.status, 502, "{path}");
    }
}

#[tokio::test]
async fn the_document_names_the_budgets_of_the_policy() {
    let service = service(POLICY).await;
    let document = send(&service, Request::get("/openapi.json"), String::new()).await.body;
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let kinds = document["components"]["schemas"]["Charge"]["anyOf"].as_array().unwrap();
    let named = kinds.iter().filter_map(|kind| kind["properties"]["budget"]["const"].as_str());
    assert_eq!(named.collect::<Vec<_>>(), ["burst", "hourly", "tokens", "watched"]);
    for path in document["paths"].as_object().unwrap().keys() {
        let route = Request::builder().method("OPTIONS").uri(path).body(Body::empty()).unwrap();
        assert_ne!(service.clone().oneshot(route).await.unwrap().status(), 404, "{path}");
    }
}

/// A ticket was said to be of a record that there is not if it was made up. But fences come from one counter, and what a record's
/// key is made of is no secret: a caller of the decision API could end the run of a request that the gateway had let run.
#[tokio::test]
async fn a_ticket_that_is_made_up_has_no_say_about_a_request_of_the_gateway() {
    let (service, store) = service_and_store(POLICY).await;
    let (record, fingerprint) = (RecordKey::new("ann", "POST", "/orders", "7"), Fingerprint::of("payload"));
    let terms = Terms::default();
    let claim = store.claim(&record, &fingerprint, &terms, Now::Store).await.unwrap();
    let Claim::Run(ticket) = claim else { panic!("{claim:?}") };
    for version in 0..=u8::MAX {
        let mut bytes = vec![version];
        bytes.extend(record.as_bytes());
        bytes.extend(ticket.fence.number().to_be_bytes());
        bytes.extend(ticket.lease_until.unix_micros().to_be_bytes());
        bytes.extend((terms.lease.as_micros() as u64).to_be_bytes());
        bytes.extend((terms.ttl.as_micros() as u64).to_be_bytes());
        bytes.push(0);
        let ticket = BASE64_URL_SAFE_NO_PAD.encode(&bytes);
        for call in ["renew", "complete", "release"] {
            let mut body = json!({"ticket": ticket});
            if call == "complete" {
                body["status"] = json!(200);
            }
            let told = post(&service, &format!("/v1/idempotency/{call}"), &body).await;
            assert_eq!(
                (told.status, &told.body["error"]),
                (409, &json!("idempotency_ticket_lost")),
                "{version} {call}"
            );
        }
    }
    let seen = store.look(&record, &fingerprint, &terms, Now::Store).await.unwrap();
    assert!(matches!(seen, Some(Claim::InFlight { .. })), "{seen:?}");
}

/// A body of a megabyte has six bytes for each of its own where all of them need an escape: it was said to fit, and was 413.
#[tokio::test]
async fn a_completion_with_the_longest_body_that_is_recorded_fits_however_it_is_written() {
    let service = service(POLICY).await;
    let claim = json!({"tenant": "ann", "operation": "POST /orders", "key": "k", "fingerprint": "f"});
    let claimed = post(&service, "/v1/idempotency/claim", &claim).await;
    let escaped = "\\u0001".repeat(1 << 20);
    let ticket = claimed.body["ticket"].as_str().unwrap();
    let complete = format!("{{\"ticket\": \"{ticket}\", \"status\": 200, \"body\": \"{escaped}\"}}");
    let completed = send(&service, Request::post("/v1/idempotency/complete"), complete).await;
    assert_eq!((completed.status, &completed.body["recorded"]), (200, &json!("response")));
}
