//! The gateway on the wire: what clients and upstreams do wrong, and what HTTP allows that is rare.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod served;

use std::net::SocketAddr;

use admit_server::policy::Keys;
use axum::Router;
use axum::body::Bytes;
use axum::routing::{any, post};
use http::StatusCode;
use served::{OPEN, Server, upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Sends bytes, and reads what comes back until the connection is closed.
async fn answer(address: SocketAddr, bytes: impl AsRef<[u8]>) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let _ = stream.write_all(bytes.as_ref()).await; // It may be closed before.
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await; // A reset ends it as well.
    String::from_utf8(answer).unwrap()
}

/// An upstream that reads a head, then says this and closes; it tells what it read.
async fn says(
    response: &'static [u8],
) -> (SocketAddr, mpsc::UnboundedReceiver<String>, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = mpsc::unbounded_channel();
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(response).await.unwrap();
            stream.shutdown().await.unwrap();
            let _ = tell.send(String::from_utf8(head).unwrap());
        }
    });
    (address, told, AbortOnDropHandle::new(serving))
}

const CLOSING: &str = "Host: a\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn a_request_for_two_hosts_or_none_is_refused_and_touches_no_budget() {
    let upstream = upstream().await;
    let policy =
        "[budgets.x]\nrate = \"1/hour\"\nby = \"ip\"\n[[routes]]\nmatch = \"* /{*path}\"\nbudgets = [\"x\"]";
    let gateway = Server::gateway(upstream.address, policy).await;
    for head in [
        "GET /x HTTP/1.1\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost:\r\n\r\n",
        "GET http://b/x HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://u@a/x HTTP/1.1\r\nHost: u@a\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
    ] {
        let answer = answer(gateway.address, format!("{head}GET /x HTTP/1.1\r\nHost: a\r\n\r\n")).await;
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.contains("connection: close"),
            "{head}: {answer}"
        );
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{head}: {answer}");
    }
    let whole =
        answer(gateway.address, "GET http://a/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(whole.starts_with("HTTP/1.1 200 ") && whole.contains("[\"host\",\"a\"]"), "{whole}");
}

#[tokio::test]
async fn a_response_that_was_cut_short_is_broken_and_not_short() {
    for (response, broken) in [
        (&b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfour"[..], true),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n", true),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n0\r\n\r\n", false),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfour", false),
    ] {
        let (address, _told, _serving) = says(response).await;
        let (gateway, metrics) =
            Server::gateway_with(&format!("upstream = \"http://{address}\"\n{OPEN}"), Keys::default()).await;
        let answer = answer(gateway.address, format!("GET / HTTP/1.1\r\n{CLOSING}")).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
        let whole = match head.contains("content-length: ") {
            true => body.len() == if broken { 9 } else { 4 },
            false => body.ends_with("0\r\n\r\n"),
        };
        assert_eq!(whole, !broken, "{answer}");
        let told = metrics.encode().unwrap().contains("admit_upstream_failures_total{kind=\"broke_off\"} 1");
        assert_eq!(told, broken);
    }
    for nonsense in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nfourfive"[..],
        b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: y\r\n folded\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ] {
        let (address, _told, _serving) = says(nonsense).await;
        let gateway = Server::gateway(address, OPEN).await;
        let answer = answer(gateway.address, format!("GET / HTTP/1.1\r\n{CLOSING}")).await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    }
}

#[tokio::test]
async fn responses_without_a_body_and_those_before_the_last_pass() {
    for (method, response, expected) in [
        ("HEAD", &b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"[..], "content-length: 9\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 204 "),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 9\r\n\r\n", "etag: \"x\"\r\n"),
        ("GET", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 "),
    ] {
        let (address, _told, _serving) = says(response).await;
        let gateway = Server::gateway(address, OPEN).await;
        let answer = answer(gateway.address, format!("{method} / HTTP/1.1\r\n{CLOSING}")).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(format!("{head}\r\n").contains(expected) && body.is_empty(), "{method}: {answer}");
    }
    let upstream = Server::start(Router::new().fallback(any(async || "hello"))).await;
    let gateway = Server::gateway(upstream.address, OPEN).await;
    let options = answer(gateway.address, format!("OPTIONS * HTTP/1.1\r\n{CLOSING}")).await;
    assert!(options.starts_with("HTTP/1.1 200 "), "{options}");
}

#[tokio::test]
async fn a_body_is_asked_for_only_where_its_request_may_run() {
    let upstream =
        Server::start(Router::new().route("/", post(async |body: Bytes| body.len().to_string()))).await;
    let policy =
        "[budgets.x]\nrate = \"1/hour\"\nby = \"ip\"\n[[routes]]\nmatch = \"POST /\"\nbudgets = [\"x\"]";
    let gateway = Server::gateway(upstream.address, policy).await;
    let head = format!("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n{CLOSING}");
    let mut first = TcpStream::connect(gateway.address).await.unwrap();
    first.write_all(head.as_bytes()).await.unwrap();
    let mut asked = [0; 25];
    first.read_exact(&mut asked).await.unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    first.write_all(b"four").await.unwrap();
    let mut rest = String::new();
    first.read_to_string(&mut rest).await.unwrap();
    assert!(rest.starts_with("HTTP/1.1 200 ") && rest.ends_with("\r\n\r\n4"), "{rest}");
    assert!(answer(gateway.address, head).await.starts_with("HTTP/1.1 429 "));
}

#[tokio::test]
async fn a_client_that_vanishes_within_its_body_ends_the_request_at_the_upstream() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let reads = post(async move |body: Result<Bytes, _>| tell.send(body.is_err()).unwrap());
    let upstream = Server::start(Router::new().route("/", reads)).await;
    let (gateway, metrics) =
        Server::gateway_with(&format!("upstream = \"http://{}\"\n{OPEN}", upstream.address), Keys::default())
            .await;
    for framing in ["Content-Length: 9\r\n\r\nfour", "Transfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n"] {
        let mut vanishing = TcpStream::connect(gateway.address).await.unwrap();
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}");
        vanishing.write_all(head.as_bytes()).await.unwrap();
        vanishing.shutdown().await.unwrap();
        assert_eq!(told.recv().await, Some(true), "it never looks whole");
    }
    assert_eq!(gateway.get("/").await.status, StatusCode::METHOD_NOT_ALLOWED, "the gateway goes on");
    assert!(
        !metrics.encode().unwrap().contains("admit_upstream_failures_total{"),
        "the upstream did no wrong"
    );
}
