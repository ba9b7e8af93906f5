//! The gateway on the wire: what clients and upstreams do wrong, and what HTTP allows that is rare.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod served;

use std::net::SocketAddr;

use admit_server::policy::Keys;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{any, post};
use http::StatusCode;
use http_body_util::BodyExt;
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
        // The coding was taken away, and what was coded passed as if it were not.
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
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
        // The version of the upstream was told to the client, whose connection then was as poor.
        ("GET", b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 "),
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

/// `Upgrade: x, h2c` went on to the upstream as it was, and one that speaks HTTP/2 in the clear then took requests that no
/// budget saw, through what the gateway held for a WebSocket. So did an answer that switched to what nobody had asked for.
#[tokio::test]
async fn no_upgrade_leads_to_another_http_nor_to_what_was_not_asked_for() {
    let switching: &[u8] =
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nsecret";
    let (address, mut told, _serving) = says(switching).await;
    let gateway = Server::gateway(address, OPEN).await;
    for (version, asked, passed) in [
        ("1.1", "Upgrade: h2c\r\n", None),
        ("1.1", "Upgrade: x, h2c\r\n", Some("upgrade: x\r\n")),
        ("1.1", "Upgrade: x\r\nUpgrade: H2C,y/1\r\n", Some("upgrade: x, y/1\r\n")),
        ("1.1", "Upgrade: HTTP/2.0, TLS/1.0\r\n", None),
        ("1.1", "Upgrade: websocket\r\n", Some("upgrade: websocket\r\n")),
        ("1.0", "Upgrade: h2c\r\n", None),
        ("1.0", "Upgrade: websocket\r\n", None),
    ] {
        let head = format!(
            "GET / HTTP/{version}\r\nHost: a\r\nConnection: Upgrade, close, HTTP2-Settings\r\n{asked}HTTP2-Settings: AA\r\n\r\n"
        );
        let answer = answer(gateway.address, head).await;
        assert!(answer.contains(" 502 ") && !answer.contains("secret"), "{asked}: {answer}");
        let seen = told.recv().await.unwrap();
        let upgrade =
            seen.lines().find(|line| line.starts_with("upgrade:")).map(|line| format!("{line}\r\n"));
        assert_eq!(upgrade.as_deref(), passed, "{seen}");
        assert!(!seen.contains("http2-settings"), "{seen}");
    }
}

/// A client that named `Host`, `Authorization` or the like in `Connection` had the gateway drop it: the upstream then
/// served another host, or took a request that had shown its credentials for one without.
#[tokio::test]
async fn what_is_about_the_request_cannot_be_called_hop_by_hop() {
    let upstream = upstream().await;
    let policy = format!("trusted_proxies = [\"127.0.0.1\"]\n{OPEN}");
    let gateway = Server::gateway(upstream.address, &policy).await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\nCookie: c=1\r\nX-Forwarded-For: 1.1.1.1\r\n\
        Connection: close, Host, authorization, cookie, X-Forwarded-For, content-type, content-length, x-own\r\n\
        Content-Type: text/plain\r\nX-Own: 1\r\nContent-Length: 0004\r\n\r\nfour";
    let answer = answer(gateway.address, head).await;
    for kept in [
        r#"["host","a"]"#,
        r#"["authorization","Bearer x"]"#,
        r#"["cookie","c=1"]"#,
        r#"["content-type","text/plain"]"#,
        r#"["content-length","4"]"#,
        r#"["x-forwarded-for","1.1.1.1, 127.0.0.1"]"#,
    ] {
        assert!(answer.contains(kept), "{kept}: {answer}");
    }
    assert!(!answer.contains("x-own"), "{answer}");
}

/// Servers that read headers by CGI's rules take `X_Forwarded_For` for `X-Forwarded-For`: a client could still tell them
/// who it is. Trailers passed with the names of headers that decide about a request.
#[tokio::test]
async fn who_the_client_is_and_where_a_body_ends_cannot_be_said_in_another_place() {
    let upstream = upstream().await;
    let gateway = Server::gateway(upstream.address, OPEN).await;
    let spelled = "GET / HTTP/1.1\r\nX_Forwarded_For: 6.6.6.6\r\nX-Forwarded_Proto: https\r\nContent_Length: 5\r\nTransfer_Encoding: chunked\r\nX_Own: 1\r\n";
    let spelled = answer(gateway.address, format!("{spelled}{CLOSING}")).await;
    assert!(spelled.contains("x_own") && !spelled.contains("6.6.6.6"), "{spelled}");
    for name in ["x-forwarded_proto", "content_length", "transfer_encoding"] {
        assert!(!spelled.contains(name), "{spelled}");
    }
    let trailers = Router::new().fallback(any(async |body: Body| {
        let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
        format!("{:?}", trailers.keys().collect::<Vec<_>>())
    }));
    for scheme in ["http", "h2c"] {
        let upstream = Server::start(trailers.clone()).await;
        let policy = format!("upstream = \"{scheme}://{}\"\n{OPEN}", upstream.address);
        let (gateway, _) = Server::gateway_with(&policy, Keys::default()).await;
        let names =
            ["X-Ok", "Content-Length", "Host", "Authorization", "X-Forwarded-For", "Forwarded", "Connection"];
        let head =
            format!("POST / HTTP/1.1\r\nTrailer: {}\r\nTransfer-Encoding: chunked\r\n", names.join(", "));
        let fields: String = names.iter().map(|name| format!("{name}: 1\r\n")).collect();
        let answer = answer(gateway.address, format!("{head}{CLOSING}1\r\nx\r\n0\r\n{fields}\r\n")).await;
        assert!(answer.ends_with("[\"x-ok\"]"), "{scheme}: {answer}");
    }
}

/// An upstream that answered a request before it had read it whole, and read on, kept the exchange open: no limit but the
/// one on silence held, so that a client with a byte now and then had a connection for ever, and one at the upstream.
#[tokio::test]
async fn the_end_of_the_response_is_the_end_of_the_exchange() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let answers_early = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await.unwrap();
        stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge").await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
        tell.send(()).unwrap();
    });
    let gateway = Server::gateway(address, OPEN).await;
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    client.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nfour").await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.ends_with("large"), "{answer}");
    told.recv().await.unwrap();
    answers_early.await.unwrap();
}

/// Of a keyed request the response is read before it is passed on. Where it broke off meanwhile, the client was told 500, as
/// if the gateway had failed.
#[tokio::test]
async fn a_keyed_response_that_was_cut_short_is_502_and_is_not_recorded() {
    let (address, mut told, _serving) = says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfour").await;
    let policy =
        "[[routes]]\nmatch = \"POST /\"\nbudgets = [\"x\"]\nidempotency = { key = \"header\", by = \"ip\" }";
    let gateway = Server::gateway(address, &format!("{OPEN}\n{policy}")).await;
    for _ in 0..2 {
        let head = format!("POST / HTTP/1.1\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n{CLOSING}");
        let answer = answer(gateway.address, head).await;
        assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("bad_gateway"), "{answer}");
        told.recv().await.unwrap();
    }
}
