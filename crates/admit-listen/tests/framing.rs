//! Requests whose end two servers could see in two places are refused, and their connection is closed: behind another
//! proxy the rest would be a request of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod served;

use admit_listen::Limits;
use axum::Router;
use axum::body::Bytes;
use axum::routing::any;
use served::Served;

/// Tells how long each body is.
async fn start() -> Served {
    let router = Router::new().fallback(any(async |body: Result<Bytes, _>| match body {
        Ok(body) => format!("length {}", body.len()),
        Err(_) => "unreadable".to_owned(),
    }));
    Served::start(router, Limits::default()).await
}

/// A request that must never be answered: it stands behind a refused one on the connection.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

async fn refused(head: &str) {
    let served = start().await;
    let answer = served.answer(format!("{head}{SMUGGLED}{SMUGGLED}")).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{head:?}: {answer:?}");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{head:?}: {answer:?}");
    served.stop().await;
}

fn post(headers: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{headers}\r\n{body}")
}

#[tokio::test]
async fn two_ends_of_one_body() {
    const CHUNKS: &str = "1\r\nx\r\n0\r\n\r\n";
    for headers in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\nX: y\r\ncontent-length: 0\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length:\r\n",
        "Content-Length: 99999999999999999999999\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding:\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
    ] {
        refused(&post(headers, CHUNKS)).await;
    }
    refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").await;
}

#[tokio::test]
async fn lines_that_end_or_begin_elsewhere() {
    for head in [
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\rZ: w\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tfolded\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\t: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n: y\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        "GET /  HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        refused(head).await;
    }
}

/// The head of these is good, so that the answer is the handler's; but nothing behind the chunk is a request.
#[tokio::test]
async fn bad_chunks_end_the_connection() {
    let flood = format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(64 << 10));
    let many = format!("{}0\r\n\r\n", "1;ext=0123456789abcdef\r\nx\r\n".repeat(4 << 10));
    for body in [
        "-1\r\nx\r\n0\r\n\r\n",
        "0x1\r\nx\r\n0\r\n\r\n",
        "+1\r\nx\r\n0\r\n\r\n",
        "\r\nx\r\n0\r\n\r\n",
        "g\r\nx\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nx\r\n0\r\n\r\n",
        "1\nx\r\n0\r\n\r\n",
        "1\r\nxy\r\n0\r\n\r\n",
        "1\r\nx\n0\r\n\r\n",
        "1;\next\r\nx\r\n0\r\n\r\n",
        "0\r\nX: y\n\r\n\r\n",
        &flood,
        &many,
    ] {
        let served = start().await;
        let answer = served.answer(post("Transfer-Encoding: chunked\r\n", body) + SMUGGLED).await;
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{body:.40}: {answer:?}");
        assert!(answer.is_empty() || answer.ends_with("unreadable"), "{body:.40}: {answer:?}");
        served.stop().await;
    }
}

#[tokio::test]
async fn good_requests_follow_one_another_however_they_are_cut() {
    let last = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let whole = [
        "\r\n".to_owned(),
        post("Content-Length: 22\r\n", "a\nContent-Length: 5\r\n\n"),
        post(
            "Transfer-Encoding: chunked\r\n",
            "3\r\na\nb\r\nA ;x=\"y\"\r\n0123456789\r\n000\r\nX: y\r\n\r\n",
        ),
        post("content-length:   7  \r\nX: \r\n", "\r\n\r\n\n\n\n"),
        post("tRANSFER-eNCODING:\tChunked\r\n", "0\r\n\r\n"),
        post("Content-Length: 0\r\n", ""),
        post("X: transfer-encoding: chunked\r\nX-Content-Length: 5\r\n", ""),
        last.to_owned(),
    ]
    .concat();
    for size in [whole.len(), 1, 7] {
        let served = start().await;
        let mut stream = served.send("").await;
        for piece in whole.as_bytes().chunks(size) {
            tokio::io::AsyncWriteExt::write_all(&mut stream, piece).await.unwrap();
        }
        let answer = served::read(stream).await;
        let lengths: Vec<&str> =
            answer.split("length ").skip(1).map(|rest| rest.split("HTTP").next().unwrap()).collect();
        assert_eq!(lengths.concat(), "221370000", "{size}: {answer}");
        served.stop().await;
    }
}
