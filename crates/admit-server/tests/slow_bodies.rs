//! Bodies that never end, at every listener. Time passes as it is told to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod served;

use std::sync::Arc;
use std::time::Duration;

use admit_server::bounds::Bounds;
use admit_server::metrics::Metrics;
use admit_server::policy::{Keys, Policy};
use admit_server::reload::Running;
use admit_server::source::Source;
use admit_server::{Front, admin};
use admit_store::AnyStore;
use admit_tower::ReadAhead;
use axum::Router;
use axum::body::{Body, Bytes};
use data_encoding::HEXLOWER;
use futures::StreamExt;
use http::{Request, Response};
use served::{Server, upstream};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::ServiceExt;

const POLICY: &str = r#"
    store = "memory:"
    [budgets.users]
    rate = "2/hour"
    by = "entry:user"
    [[descriptors]]
    entries = { user = "*" }
    budgets = "users"
"#;

/// A few bytes, and then nothing more; nor does it end.
fn endless(bytes: &'static [u8]) -> Body {
    let first = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(bytes))]);
    Body::from_stream(first.chain(futures::stream::pending()))
}

async fn ask(router: &Router, request: http::request::Builder, body: Body) -> Response<Body> {
    router.clone().oneshot(request.body(body).unwrap()).await.unwrap()
}

/// A call whose message never came held its stream, and so a place among the connections, for ever: some thousand of them took
/// the listener from everybody, and none had to show a token.
#[tokio::test(start_paused = true)]
async fn a_grpc_call_that_never_ends_is_answered() {
    let policy = Policy::parse("test", POLICY).unwrap();
    let store = AnyStore::open("memory:", policy.rules().unwrap()).await.unwrap();
    let router = Front::new(Arc::new(policy), Arc::new(Keys::default()), store, Metrics::default()).decide();
    for path in [
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        "/envoy.service.auth.v3.Authorization/Check",
        "/grpc.health.v1.Health/Check",
    ] {
        // Nothing, a part of a message, and a whole one without an end.
        for bytes in [&b""[..], &[0, 0, 0, 0, 9, 1], &[0, 0, 0, 0, 0]] {
            let call =
                Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
            let answer = ask(&router, call, endless(bytes)).await;
            assert_eq!(answer.headers()["grpc-status"], "4", "{path} {bytes:?}: DEADLINE_EXCEEDED");
        }
        let empty = Bytes::from_static(&[0, 0, 0, 0, 0]);
        let many = std::iter::repeat_n(empty, 100_000).map(Ok::<_, std::io::Error>);
        let call = Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
        let answer = ask(&router, call, Body::from_stream(futures::stream::iter(many))).await;
        assert_ne!(answer.headers().get("grpc-status").map_or("0", |status| status.to_str().unwrap()), "0");
    }
}

/// A call that the generated service answers counted twice against the room for bodies, so that there was none for it where
/// half of that was free.
#[tokio::test]
async fn a_grpc_call_takes_up_its_room_once_whoever_answers_it() {
    let policy = Policy::parse("test", POLICY).unwrap();
    let store = AnyStore::open("memory:", policy.rules().unwrap()).await.unwrap();
    let bounds = Bounds { read_ahead: ReadAhead::new(10_000), ..Bounds::default() };
    let front = Front::new(Arc::new(policy), Arc::new(Keys::default()), store, Metrics::default());
    let router = front.within(bounds).decide();
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let call = Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
    let message = [&[0][..], &6_000_u32.to_be_bytes(), &[0xff; 6_000]].concat(); // Is none.
    let answer = ask(&router, call, message.into()).await;
    assert_eq!(answer.headers()["grpc-status"], "13", "INTERNAL, and not UNAVAILABLE: there is room");
}

/// The body was waited for, up to 2 MB and for ever, before the token was looked at.
#[tokio::test(start_paused = true)]
async fn the_admin_listener_looks_at_the_token_first_and_then_waits_for_a_body_no_longer_than_it_may_take() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("admit.toml");
    let token = HEXLOWER.encode(&Sha256::digest("t0ken"));
    std::fs::write(&file, format!("admin_tokens = [\"{token}\"]\n{POLICY}")).unwrap();
    let source = Source::from(file);
    let read = source.read();
    let rules = read.policy.as_ref().unwrap().0.rules().unwrap();
    let store = AnyStore::open("memory:", rules).await.unwrap();
    let (running, _reloader) = Running::start(source, read, store, Metrics::default()).await.unwrap();
    let router = admin::router(running);
    let reset =
        |token: &str| Request::post("/buckets/reset").header("authorization", format!("Bearer {token}"));
    let refused = timeout(Duration::from_secs(1), ask(&router, reset("wrong"), endless(b"{"))).await;
    assert_eq!(refused.expect("nothing is waited for").status(), 401);
    assert_eq!(ask(&router, reset("t0ken"), endless(b"{")).await.status(), 408);
    let large = Body::from(vec![b' '; 100_000]);
    assert_eq!(ask(&router, reset("t0ken"), large).await.status(), 413);
}

/// Each request was bounded, and nothing was bounded over all of them: bodies that are read for a key or a cost, before any
/// budget is asked, could fill the memory.
#[tokio::test]
async fn bodies_that_are_read_before_any_budget_have_one_bound() {
    let upstream = upstream().await;
    let policy = format!(
        "upstream = \"http://{}\"\n[budgets.x]\nrate = \"1000/second\"\nby = \"json:/user\"\n[[routes]]\n\
         match = \"POST /{{*path}}\"\nbudgets = [\"x\"]\n",
        upstream.address
    );
    let bounds = Bounds { read_ahead: ReadAhead::new(10_000), ..Bounds::default() };
    let (gateway, _) = Server::gateway_within(&policy, Keys::default(), bounds).await;
    let post = async |length: usize| {
        let body = format!("{{\"user\": \"{}\"}}", "x".repeat(length));
        let reply = gateway.send(Request::builder().method("POST"), "/a", body).await;
        (reply.status.as_u16(), reply.json()["error"].clone())
    };
    let stalled = async |sent: usize| {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        let head = "POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b' '; sent]).await.unwrap();
        stream
    };
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    let _announced = stalled(0).await; // What was only announced takes up nothing.
    assert_eq!(post(9_000).await.0, 200);
    let mut holding = stalled(5_000).await;
    let refused = loop {
        match post(9_000).await {
            // It is not there yet, or came while there was no room for it: the test once waited for that one for ever.
            (200, _) => {
                tick.tick().await;
                holding = stalled(5_000).await;
            }
            refused => break refused,
        };
    };
    assert_eq!(refused, (503, "overloaded".into()));
    // There is room for a small one, once those before have been found to be gone.
    while post(1_000).await.0 != 200 {
        tick.tick().await;
    }
    drop(holding);
    while post(9_000).await.0 != 200 {
        tick.tick().await;
    }
}
