//! A budget of bytes is charged what crosses the wire.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod served;

use admit_server::policy::Keys;
use axum::body::Body;
use axum::extract::Request;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use served::{Server, upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// 1,000,000 bytes, which refill by 28 a second.
const BYTES: &str = r#"
    retention = "10h"
    [budgets.bytes]
    rate = "100000/hour burst 1000000"
    by = "header:x-user"
    cost = "body_bytes"
    [[routes]]
    match = "POST /upload"
    budgets = ["bytes"]
"#;

fn upload(user: &str) -> http::request::Builder {
    Request::builder().method(Method::POST).header("x-user", user)
}

/// What is left of the budget, in ten thousands: it refills by less than that while a test runs.
fn left(reply: &served::Reply) -> u64 {
    let field = reply.header("ratelimit").unwrap();
    let left = field.split("r=").nth(1).unwrap().split(';').next().unwrap();
    (left.parse::<u64>().unwrap() + 5_000) / 10_000
}

#[tokio::test]
async fn a_body_without_a_length_is_charged_what_it_holds() {
    let upstream = upstream().await;
    let gateway = Server::gateway(upstream.address, BYTES).await;
    let pieces = |count: usize| {
        Body::from_stream(futures::stream::iter(
            (0..count).map(|_| Ok::<_, std::io::Error>(vec![0_u8; 100_000])),
        ))
    };
    let chunked = gateway.send(upload("ann"), "/upload", pieces(3)).await;
    assert_eq!((chunked.json()["length"].as_u64(), left(&chunked)), (Some(300_000), 70));

    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Body>();
    let http2 = async |user: &str, body: Body| {
        let request = upload(user).uri(format!("http://{}/upload", gateway.address)).body(body).unwrap();
        client.request(request).await.unwrap()
    };
    let response = http2("bob", pieces(4)).await;
    assert_eq!(response.headers()["ratelimit"].to_str().unwrap().split(';').nth(1), Some("r=600000"));
    let seen = response.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&seen).contains("\"length\":400000"), "{seen:?}");

    let long = gateway.send(upload("ann"), "/upload", pieces(11)).await;
    assert_eq!(long.status, StatusCode::LENGTH_REQUIRED);
    assert!(long.json()["detail"].as_str().unwrap().contains("send Content-Length"), "{}", long.json());
    assert_eq!(left(&gateway.send(upload("ann"), "/upload", "x").await), 70, "it cost nothing");
    // With its length, what is beyond the bound of that is charged and passes.
    let reply = gateway.send(upload("eve"), "/upload", vec![0; 900_000]).await;
    assert_eq!((reply.status, left(&reply)), (StatusCode::OK, 10));
}

/// A client that announced a large body and then vanished had paid for all of it.
#[tokio::test]
async fn what_was_announced_and_never_came_is_given_back() {
    let upstream = upstream().await;
    let gateway = Server::gateway(upstream.address, BYTES).await;
    let mut vanishing = TcpStream::connect(gateway.address).await.unwrap();
    let head = "POST /upload HTTP/1.1\r\nHost: a\r\nX-User: ann\r\nContent-Length: 900000\r\n\r\n";
    vanishing.write_all(head.as_bytes()).await.unwrap();
    vanishing.write_all(&[0; 250_000]).await.unwrap();
    let spent = loop {
        let left = left(&gateway.send(upload("ann"), "/upload", "x").await);
        if left < 100 {
            break left;
        }
    };
    assert!(spent == 10, "it is charged as it was announced: {spent}");
    drop(vanishing);
    let refunded = loop {
        let left = left(&gateway.send(upload("ann"), "/upload", "x").await);
        if left > 10 {
            break left;
        }
    };
    assert!(refunded == 75, "what came stays charged: {refunded}");
}

#[tokio::test]
async fn what_no_upstream_took_is_given_back_and_what_was_refused_mints_nothing() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let gateway = Server::gateway(nobody, BYTES).await;
    let reply = gateway.send(upload("ann"), "/upload", vec![0; 900_000]).await;
    assert_eq!((reply.status, left(&reply)), (StatusCode::BAD_GATEWAY, 10));
    while left(&gateway.send(upload("ann"), "/upload", "x").await) < 100 {}
    for _ in 0..3 {
        let refused = gateway.send(upload("bob"), "/upload", vec![0; 1_000_001]).await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    }
    assert_eq!(left(&gateway.send(upload("bob"), "/upload", "x").await), 100);
}

/// A shadow kept what it had debited for a body that never came, so that it told of more bytes than had crossed the wire: a
/// budget that was tried in shadow looked too small.
#[tokio::test]
async fn a_shadow_is_given_back_what_never_came_also_where_another_budget_refuses() {
    let upstream = upstream().await;
    let policy = r#"
        retention = "10h"
        [budgets.bytes]
        rate = "100000/hour burst 1000000"
        by = "const:all"
        cost = "body_bytes"
        mode = "shadow"
        [budgets.calls]
        rate = "1/hour"
        by = "header:x-user"
        [[routes]]
        match = "POST /upload"
        budgets = ["bytes", "calls"]
    "#;
    let policy = format!("upstream = \"http://{}\"\n{policy}", upstream.address);
    let (gateway, metrics) = Server::gateway_with(&policy, Keys::default()).await;
    let shadow = |outcome: &str| {
        let text = metrics.encode().unwrap();
        let name =
            format!("admit_decisions_total{{budget=\"bytes\",mode=\"shadow\",outcome=\"{outcome}\"}} ");
        text.lines()
            .find_map(|line| line.strip_prefix(&name))
            .map_or(0, |count| count.parse::<u32>().unwrap())
    };
    let announce = async |user: &str, sent: &[u8]| {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        let head =
            format!("POST /upload HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\nContent-Length: 900000\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(sent).await.unwrap();
        stream
    };
    // One vanishes with its body half sent, and one is refused before it has sent any.
    assert_eq!(gateway.send(upload("ann"), "/upload", "x").await.status, StatusCode::OK);
    let vanishing = announce("eve", &[0; 100_000]).await;
    while shadow("granted") < 2 {
        tokio::task::yield_now().await;
    }
    drop(vanishing);
    let mut refused = String::new();
    announce("ann", b"").await.read_to_string(&mut refused).await.unwrap();
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    let mut users = 0;
    loop {
        users += 1; // Each has one call. What is left fits only once both were given back.
        let (granted, body) = (shadow("granted"), vec![0; 850_000]);
        assert_eq!(
            gateway.send(upload(&format!("bob{users}")), "/upload", body).await.status,
            StatusCode::OK
        );
        if shadow("granted") > granted {
            break;
        }
    }
}

/// What comes back to a leased bucket in the store can be held beside a full one: more is granted than the budget allows.
#[tokio::test]
async fn bytes_that_never_came_go_back_to_the_store_only_where_nothing_is_leased() {
    let upstream = upstream().await;
    for lease in ["", "lease = \"50%\""] {
        let budget = |name: &str, by: &str, mode: &str| {
            format!(
                "[budgets.{name}]\nrate = \"100000/hour burst 1000000\"\nby = \"{by}\"\n\
                 cost = \"body_bytes\"\nmode = \"{mode}\"\n{lease}\n"
            )
        };
        let policy = format!(
            "upstream = \"http://{}\"\nretention = \"10h\"\n{}{}\
             [[routes]]\nmatch = \"POST /upload\"\nbudgets = [\"all\", \"bytes\"]\n",
            upstream.address,
            budget("all", "const:all", "shadow"),
            budget("bytes", "header:x-user", "enforce"),
        );
        let (gateway, metrics) = Server::gateway_with(&policy, Keys::default()).await;
        let granted = |budget: &str, mode: &str| {
            let text = metrics.encode().unwrap();
            let name =
                format!("admit_decisions_total{{budget=\"{budget}\",mode=\"{mode}\",outcome=\"granted\"}} ");
            let count = text.lines().find_map(|line| line.strip_prefix(&name));
            count.map_or(0, |count| count.parse::<u32>().unwrap())
        };
        let are_granted =
            |times: u32| granted("all", "shadow") >= times && granted("bytes", "enforce") >= times;
        let mut vanishing = TcpStream::connect(gateway.address).await.unwrap();
        let head = "POST /upload HTTP/1.1\r\nHost: a\r\nX-User: ann\r\nContent-Length: 900000\r\n\r\n";
        vanishing.write_all(head.as_bytes()).await.unwrap();
        vanishing.write_all(&[0; 100_000]).await.unwrap();
        while !are_granted(1) {
            tokio::task::yield_now().await;
        }
        drop(vanishing);
        while !are_granted(2) {
            gateway.send(upload("ann"), "/upload", vec![0; 300_000]).await; // Fits once they were given back.
        }
        let text = metrics.encode().unwrap();
        assert_eq!(text.contains("operation=\"refund\""), lease.is_empty(), "{lease:?}: {text}");
    }
}
