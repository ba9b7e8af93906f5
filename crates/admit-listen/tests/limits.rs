//! Each limit of the listener, met by a client that goes beyond it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod served;

use std::sync::Arc;

use admit_listen::Limits;
use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::routing::{get, post};
use served::{SOON, Served, Told, read};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

fn hello() -> Router {
    Router::new().route("/", get(async || "hello"))
}

#[tokio::test]
async fn one_connection_too_many_waits_for_its_turn() {
    let arrived = Arc::new(Notify::new());
    // The first request tells whether a second one came while it ran.
    let second = arrived.clone();
    let first = get(async move || match timeout(SOON, second.notified()).await {
        Ok(()) => "together",
        Err(_) => "alone",
    });
    let router = Router::new().route("/first", first).route(
        "/",
        get(async move || {
            arrived.notify_one();
            "hello"
        }),
    );
    let served = Served::start(router, Limits { connections: 1, ..Limits::default() }).await;
    let first = served.send(REQUEST.replace("/ ", "/first ")).await;
    let second = served.send(REQUEST).await;
    assert!(read(first).await.ends_with("alone"));
    assert!(read(second).await.ends_with("hello"));
    served.stop().await;
}

#[tokio::test]
async fn a_head_that_comes_too_slowly_is_not_waited_for() {
    let served = Served::start(hello(), Limits { head_time: SOON, ..Limits::default() }).await;
    let answer = served.answer("GET / HTTP/1.1\r\nHost:").await;
    assert!(!answer.contains("200"), "{answer}");
    // So is silence between two requests.
    let answer = served.answer("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(answer.ends_with("hello"), "{answer}");
    served.stop().await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_431() {
    let served = Served::start(hello(), Limits::default()).await;
    let with = |headers: &str| REQUEST.replace("Host: a\r\n", &format!("Host: a\r\n{headers}"));
    for headers in ["x: y\r\n".repeat(64), format!("x: {}\r\n", "y".repeat(16 << 10))] {
        let answer = served.answer(with(&headers)).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    assert!(served.answer(with(&"x: y\r\n".repeat(60))).await.ends_with("hello"));
    served.stop().await;
}

/// A connection whose client stopped reading was held for ever, and with it one of the limited number.
#[tokio::test]
async fn who_reads_nothing_of_a_response_is_cut_off() {
    let (tell, mut dropped) = mpsc::unbounded_channel();
    let endless = get(async move || {
        let told = Told(tell.clone());
        let chunks = futures::stream::repeat_with(move || {
            let _held_as_long_as_the_body = &told;
            Ok::<_, std::io::Error>(vec![0_u8; 1 << 16])
        });
        Body::from_stream(chunks)
    });
    let router = Router::new().route("/", endless);
    let served = Served::start(router, Limits { stall_time: SOON, ..Limits::default() }).await;
    let silent = served.send(REQUEST).await;
    dropped.recv().await.unwrap();
    drop(silent);
    served.stop().await;
}

#[tokio::test]
async fn what_runs_is_finished_after_the_stop_up_to_a_bound() {
    let (started, mut starts) = mpsc::channel::<()>(2);
    let go_on = Arc::new(Notify::new());
    let (tell, wait) = (started.clone(), go_on.clone());
    let finishes = get(async move || {
        tell.send(()).await.unwrap();
        wait.notified().await;
        "finished"
    });
    let never = get(async move || {
        started.send(()).await.unwrap();
        std::future::pending::<&str>().await
    });
    let router = Router::new().route("/", finishes).route("/never", never);
    let served = Served::start(router, Limits { shutdown_time: SOON, ..Limits::default() }).await;
    let finishing = served.send(REQUEST).await;
    let hanging = served.send(REQUEST.replace("/ ", "/never ")).await;
    starts.recv().await.unwrap();
    starts.recv().await.unwrap();
    served.shutdown.cancel();
    go_on.notify_one();
    assert!(read(finishing).await.ends_with("finished"));
    served.serving.await.unwrap();
    assert!(TcpStream::connect(served.address).await.is_err(), "nothing is accepted any more");
    drop(hanging);
}

/// A connection on which no request had been read when the stop began was closed at once, with a request that the client
/// had sent whole unread: of 32 busy clients of the fleet API up to 28 got no answer. Each answer now says that it is the
/// connection's last, and one that stays silent is closed after a while.
#[tokio::test]
async fn a_request_that_arrives_with_the_stop_is_answered() {
    let served = Served::start(hello(), Limits::default()).await;
    let mut busy = served.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let silent = served.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    for stream in [&busy, &silent] {
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello") {
            stream.readable().await.unwrap();
            let _ = stream.try_read_buf(&mut answer);
        }
        assert!(!String::from_utf8(answer).unwrap().contains("connection: close"));
    }
    served.shutdown.cancel();
    busy.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let answer = read(busy).await;
    assert!(answer.contains("connection: close\r\n") && answer.ends_with("hello"), "{answer:?}");
    assert_eq!(read(silent).await, "");
    served.stop().await;
}

/// A connection whose request was answered before it was read was closed while its client sent, and so reset: a client that
/// had not read the refusal of its upload by then saw a broken connection.
#[tokio::test]
async fn who_is_refused_within_an_upload_can_send_it_and_reads_the_refusal() {
    const LENGTH: usize = 16 << 20; // More than the buffers between the two hold.
    let router = Router::new().route("/", post(async || (StatusCode::TOO_MANY_REQUESTS, "later")));
    let served = Served::start(router, Limits::default()).await;
    let mut client =
        served.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n")).await;
    client.write_all(&vec![0; LENGTH]).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 429 ") && answer.ends_with("later"), "{answer}");
    // Who goes on is cut off.
    let mut endless = served.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    while endless.write_all(b"4\r\nfour\r\n").await.is_ok() {
        tokio::task::yield_now().await;
    }
    served.stop().await;
}

/// Connections that the system had taken, and the program not yet, were reset by the stop: a client that connected just
/// before it lost its request.
#[tokio::test]
async fn who_had_connected_when_the_stop_began_is_answered() {
    let served = Served::start(hello(), Limits::default()).await;
    let queued: Vec<_> = (0..16)
        .map(|_| {
            let mut client = std::net::TcpStream::connect(served.address).unwrap(); // Does not let the listener run.
            std::io::Write::write_all(&mut client, REQUEST.as_bytes()).unwrap();
            client
        })
        .collect();
    served.shutdown.cancel();
    for client in queued {
        client.set_nonblocking(true).unwrap();
        let answer = read(TcpStream::from_std(client).unwrap()).await;
        assert!(answer.ends_with("hello"), "{answer:?}");
    }
    served.stop().await;
}
