//! The gateway between a real client and a real upstream.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod served;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use admit_server::policy::Keys;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::{get, post};
use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use served::{OPEN, Server, upstream};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Those of two tenants, one of which pays.
fn keys() -> Keys {
    let entry = |key: &str, rest: &str| {
        let digest = HEXLOWER.encode(&Sha256::digest(key));
        format!("[[keys]]\nsha256 = \"{digest}\"\n{rest}\n")
    };
    let text = entry("key-1", "tenant = \"acme\"\nplan = \"pro\"") + &entry("key-2", "tenant = \"beta\"");
    Keys::parse("keys.toml", &text).unwrap()
}

#[tokio::test]
async fn a_request_passes_as_it_is_without_what_is_about_the_connection() {
    let upstream = upstream().await;
    let gateway = Server::gateway(upstream.address, OPEN).await;
    let request = Request::builder()
        .method(Method::PUT)
        .header("connection", "x-private")
        .header("x-private", "1")
        .header("x-forwarded-for", "6.6.6.6")
        .header("x-own", "kept");
    let seen = gateway.send(request, "/a%2Fb//c;p/d/?x=%20&y", "body").await.json();
    assert_eq!(
        (&seen["method"], &seen["path"], &seen["length"]),
        (&json!("PUT"), &json!("/a%2Fb//c;p/d/?x=%20&y"), &json!(4))
    );
    let headers = seen["headers"].as_array().unwrap();
    let has = |name: &str, value: &str| headers.contains(&json!([name, value]));
    let host = gateway.address.to_string();
    assert!(has("x-own", "kept") && has("host", &host) && has("x-forwarded-host", &host), "{headers:?}");
    assert!(has("x-forwarded-for", "127.0.0.1") && has("x-forwarded-proto", "http"), "{headers:?}");
    assert!(
        !headers.iter().any(|header| header[0] == "x-private" || header[0] == "connection"),
        "{headers:?}"
    );
}

/// A client that named a header in `Connection` had it taken away: it was charged the cost of 0 that it had sent, and the
/// upstream, which saw none, did the work that it does by default.
#[tokio::test]
async fn what_a_request_was_charged_by_reaches_the_upstream() {
    let upstream = upstream().await;
    let policy = r#"
        key_headers = ["x-token"]
        [budgets.x]
        rate = "100/hour"
        by = "header:x-user"
        cost = { from = "header:x-cost", otherwise = 50 }
        [[routes]]
        match = "POST /{*path}"
        budgets = ["x"]
        idempotency = { key = "header", by = "header:x-shop" }
    "#;
    let gateway = Server::gateway(upstream.address, policy).await;
    let names = ["x-user", "x-cost", "x-shop", "x-token", "idempotency-key"];
    let mut request = Request::builder().method(Method::POST).header("connection", names.join(", "));
    for name in names {
        request = request.header(name, "0").header(name.replace('-', "_"), "1");
    }
    let seen = gateway.send(request.header("x_other", "1"), "/a", "").await.json();
    let headers = seen["headers"].as_array().unwrap();
    for name in names {
        assert!(headers.contains(&json!([name, "0"])), "{name}: {headers:?}");
        assert!(!headers.contains(&json!([name.replace('-', "_"), "1"])), "{name}: {headers:?}");
    }
    assert!(headers.contains(&json!(["x_other", "1"])), "{headers:?}");
}

#[tokio::test]
async fn budgets_hold_whatever_the_spelling_of_the_path() {
    let upstream = upstream().await;
    let policy = r#"
        [budgets.jobs]
        rate = "2/hour"
        by = "header:x-user"
        [budgets.all]
        rate = "100/hour"
        by = "header:x-user"
        [[routes]]
        match = "POST /v1/jobs"
        budgets = ["jobs", "all"]
    "#;
    let gateway = Server::gateway(upstream.address, policy).await;
    let user = |name: &str| Request::builder().method(Method::POST).header("x-user", name);
    for (path, status) in [("/v1/jobs", 200), ("/v1/%6Aobs", 200), ("//v1/jobs/", 429), ("/v1/jobs?x", 429)] {
        assert_eq!(gateway.send(user("ann"), path, "").await.status, status, "{path}");
    }
    let refused = gateway.send(user("ann"), "/v1/jobs", "").await;
    assert_eq!(
        (refused.header("retry-after"), refused.header("ratelimit")),
        (Some("1800"), Some("\"jobs\";r=0;t=1800"))
    );
    assert_eq!(refused.json()["violated-policies"], json!(["jobs"]));
    assert_eq!(
        gateway.send(user("bob"), "/v1/jobs", "").await.header("ratelimit"),
        Some("\"jobs\";r=1;t=1800, \"all\";r=99;t=36")
    );
    assert_eq!(gateway.get("/v1/jobs").await.status, 200, "of another method the policy says nothing");
}

#[tokio::test]
async fn keys_and_costs_come_from_the_body_that_still_reaches_the_upstream() {
    let upstream = upstream().await;
    let policy = r#"
        [budgets.tokens]
        rate = "100/hour"
        by = "json:/user"
        cost = "json:/max_tokens"
        [budgets.bytes]
        rate = "100/hour burst 1000"
        by = "json:/user"
        cost = "body_bytes"
        mode = "shadow"
        [[routes]]
        match = "POST /chat"
        budgets = ["tokens", "bytes"]
    "#;
    let policy = format!("retention = \"10h\"\n{policy}");
    let gateway = Server::gateway(upstream.address, &policy).await;
    let chat = async |body: Value| {
        gateway.send(Request::builder().method(Method::POST), "/chat", body.to_string()).await
    };
    let body = json!({"user": "ann", "max_tokens": 60});
    let first = chat(body.clone()).await;
    assert_eq!((first.status, &first.json()["length"]), (StatusCode::OK, &json!(body.to_string().len())));
    assert_eq!(chat(body).await.status, 429);
    assert_eq!(chat(json!({"user": "bob", "max_tokens": 60})).await.status, 200);
    let wrong = chat(json!({"user": "bob"})).await;
    assert_eq!((wrong.status, &wrong.json()["error"]), (StatusCode::BAD_REQUEST, &json!("cost_unknown")));
    let large = chat(json!({"user": "bob", "max_tokens": 1, "text": "x".repeat(1 << 20)})).await;
    assert_eq!(large.status, 413);
    // The shadow's bucket holds 1,000 bytes; what does not fit there runs all the same.
    assert_eq!(chat(json!({"user": "eve", "max_tokens": 1, "text": "x".repeat(2_000)})).await.status, 200);
}

#[tokio::test]
async fn a_keyed_request_is_replayed_without_the_upstream() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let pay = post(async move || format!("payment {}", counted.fetch_add(1, Ordering::SeqCst)));
    let upstream = Server::start(Router::new().route("/pay", pay)).await;
    let policy = r#"
        [budgets.x]
        rate = "3/hour"
        by = "header:x-user"
        [[routes]]
        match = "POST /pay"
        budgets = ["x"]
        idempotency = { key = "header", by = "header:x-user" }
    "#;
    let gateway = Server::gateway(upstream.address, policy).await;
    let pay = async |user: &str, key: &str, body: &'static str| {
        let request =
            Request::builder().method(Method::POST).header("x-user", user).header("idempotency-key", key);
        gateway.send(request, "/pay", body).await
    };
    for replayed in [None, Some("true"), Some("true"), Some("true"), Some("true")] {
        let reply = pay("ann", "k", "10").await;
        assert_eq!((reply.status, &reply.body[..]), (StatusCode::OK, &b"payment 0"[..]));
        assert_eq!(reply.header("idempotent-replayed"), replayed);
    }
    assert_eq!(pay("ann", "k", "20").await.status, 422);
    assert_eq!(pay("bob", "k", "20").await.body, "payment 1", "another's key is another key");
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    let missing =
        gateway.send(Request::builder().method(Method::POST).header("x-user", "ann"), "/pay", "").await;
    assert_eq!(missing.json()["error"], "idempotency_key_missing");
}

/// All callers that sent no `X-User`, or two, were one: who sent the key of another of them got what that one was told.
#[tokio::test]
async fn a_caller_that_is_nobody_has_no_idempotency_keys() {
    let upstream = upstream().await;
    let policy = r#"
        [budgets.x]
        rate = "100/hour"
        by = "header:x-user"
        [[routes]]
        match = "POST /pay"
        budgets = ["x"]
        idempotency = { key = "header", by = ["ip", "header:x-user", "query:shop", "json:/till"] }
    "#;
    let gateway = Server::gateway(upstream.address, policy).await;
    let pay = async |users: &[&str], path: &str, body: &str| {
        let mut request = Request::builder().method(Method::POST).header("idempotency-key", "k");
        for user in users {
            request = request.header("x-user", *user);
        }
        gateway.send(request, path, body.to_owned()).await
    };
    let (path, body) = ("/pay?shop=1", "{\"till\": 3}");
    assert_eq!(pay(&["ann"], path, body).await.status, 200);
    for (users, path, body, lacks) in [
        (&[][..], path, body, "header:x-user"),
        (&[""], path, body, "header:x-user"),
        (&["ann", "bob"], path, body, "header:x-user"),
        (&["ann"], "/pay", body, "query:shop"),
        (&["ann"], "/pay?shop=1&shop=2", body, "query:shop"),
        (&["ann"], path, "{\"till\": null}", "json:/till"),
        (&["ann"], path, "{}", "json:/till"),
    ] {
        let reply = pay(users, path, body).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]),
            (StatusCode::BAD_REQUEST, &json!("caller_unknown"))
        );
        assert!(reply.json()["detail"].as_str().unwrap().contains(lacks), "{}", reply.json());
    }
}

/// The record was that of the route, whatever stood for the names in its path: job 2 was answered with what job 1 had come to,
/// and never started.
#[tokio::test]
async fn a_key_is_good_for_one_path_and_not_for_all_that_its_route_has() {
    let start = post(async |uri: http::Uri| format!("started {uri}"));
    let upstream = Server::start(Router::new().fallback_service(start)).await;
    let policy = r#"
        [budgets.x]
        rate = "100/hour"
        by = "header:x-user"
        [[routes]]
        match = "POST /jobs/{id}/start"
        budgets = ["x"]
        idempotency = { key = "header", by = "header:x-user", if_missing = "content" }
        [[routes]]
        match = "POST /teams/{*rest}"
        idempotency = { key = "json:/id", by = "const:all" }
    "#;
    let gateway = Server::gateway(upstream.address, policy).await;
    let send = async |path: &str, key: Option<&str>| {
        let mut request = Request::builder().method(Method::POST).header("x-user", "ann");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let reply = gateway.send(request, path, "{\"id\": \"7\"}").await;
        (String::from_utf8(reply.body.to_vec()).unwrap(), reply.headers.contains_key("idempotent-replayed"))
    };
    for (path, key) in [
        ("/jobs/1/start", None),
        ("/jobs/2/start", None),
        ("/jobs/1/start", Some("k")),
        ("/jobs/2/start", Some("k")),
        ("/teams/a/b", None),
        ("/teams/a/c", None),
    ] {
        assert_eq!(send(path, key).await, (format!("started {path}"), false), "{key:?}");
        assert_eq!(send(path, key).await, (format!("started {path}"), true), "{key:?}");
    }
    assert!(send("/jobs/1/start/", Some("k")).await.1, "another spelling of a path is the same path");
}

#[tokio::test]
async fn a_known_key_has_its_plan_and_an_unknown_one_touches_no_bucket() {
    let upstream = upstream().await;
    let policy = r#"
        keys = "keys.toml"
        [budgets.x]
        rate = "1/hour"
        plans.pro = "3/hour"
        by = "tenant"
        [[routes]]
        match = "GET /v1"
        budgets = ["x"]
    "#;
    let policy = format!("upstream = \"http://{}\"\n{policy}", upstream.address);
    let (gateway, _) = Server::gateway_with(&policy, keys()).await;
    let call = async |name: &'static str, value: &'static str| {
        gateway.send(Request::builder().header(name, value), "/v1", "").await.status.as_u16()
    };
    for (name, value) in [("x-api-key", "wrong"), ("authorization", "Basic key-1"), ("x-other", "key-1")] {
        assert_eq!(call(name, value).await, 401, "{name}: {value}");
    }
    let acme = [
        call("x-api-key", "key-1").await,
        call("apikey", "key-1").await,
        call("authorization", "bearer key-1").await,
    ];
    assert_eq!((acme, call("x-api-key", "key-1").await), ([200; 3], 429));
    assert_eq!([call("x-api-key", "key-2").await, call("x-api-key", "key-2").await], [200, 429]);
    let twice = Request::builder().header("x-api-key", "key-2").header("x-api-key", "key-1");
    assert_eq!(gateway.send(twice, "/v1", "").await.status, 401);
    assert_eq!(gateway.get("/other").await.status, 200, "a route without budgets by key needs none");
}

#[tokio::test]
async fn bodies_stream_both_ways_without_being_held() {
    const CHUNK: usize = 1 << 16;
    const CHUNKS: usize = 2_000; // 125 MiB each way.
    let mirror = post(async |request: Request| request.into_body());
    let upstream = Server::start(Router::new().route("/mirror", mirror)).await;
    let gateway = Server::gateway(upstream.address, OPEN).await;
    let chunks = (0..CHUNKS).map(|i| Ok::<_, std::io::Error>(Bytes::from(vec![i as u8; CHUNK])));
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let request = Request::post(format!("http://{}/mirror", gateway.address));
    let request = request.body(Body::from_stream(futures::stream::iter(chunks))).unwrap();
    let mut body = client.request(request).await.unwrap().into_body();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        assert!(data.iter().enumerate().all(|(i, byte)| *byte == ((length + i) / CHUNK) as u8));
        length += data.len();
    }
    assert_eq!(length, CHUNK * CHUNKS);
}

#[tokio::test]
async fn an_upgraded_connection_passes_bytes_both_ways() {
    let upgrade = get(async |mut request: Request| {
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut io = hyper_util::rt::TokioIo::new(upgraded.await.unwrap());
            let mut four = [0; 4];
            while io.read_exact(&mut four).await.is_ok() {
                four.reverse();
                io.write_all(&four).await.unwrap();
            }
        });
        let headers = [("connection", "upgrade"), ("upgrade", "mirror")];
        (StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty())
    });
    let upstream = Server::start(Router::new().route("/ws", upgrade)).await;
    let policy =
        "[budgets.x]\nrate = \"1/hour\"\nby = \"ip\"\n[[routes]]\nmatch = \"GET /ws\"\nbudgets = [\"x\"]";
    let gateway = Server::gateway(upstream.address, policy).await;
    let ask = b"GET /ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: mirror\r\n\r\n";
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(ask).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    for word in [b"a\n\0d", b"1234"] {
        stream.write_all(word).await.unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.unwrap();
        answer.reverse();
        assert_eq!(answer, *word);
    }
    let mut second = TcpStream::connect(gateway.address).await.unwrap();
    second.write_all(ask).await.unwrap();
    let mut status = [0; 12];
    second.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 429", "an upgrade is charged like any request");
}

#[tokio::test]
async fn an_upstream_that_is_away_or_breaks_off_is_502() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gateway = Server::gateway(address, OPEN).await;
    let breaks_off = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await.unwrap();
        drop(stream);
        drop(listener);
    });
    for _ in 0..2 {
        let reply = gateway.get("/").await;
        assert_eq!((reply.status, &reply.json()["error"]), (StatusCode::BAD_GATEWAY, &json!("bad_gateway")));
    }
    breaks_off.await.unwrap();
}
