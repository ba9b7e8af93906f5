//! Connections on workers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashSet;

use admit_listen::{Limits, Workers, serve_tls};
use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn connections_are_spread_over_the_workers_and_end_with_the_listener() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", get(async || format!("worker {}", Workers::index())));
    let (shutdown, workers) = (CancellationToken::new(), Workers::start().unwrap());
    let serving = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { serve_tls(listener, router, None, Limits::default(), shutdown, Some(&workers)).await }
    });

    let (mut connections, mut seen) = (Vec::new(), HashSet::new());
    for _ in 0..Workers::count() {
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.windows(7).any(|window| window == b"worker ") || answer.len() < 8 {
            assert_ne!(connection.read_buf(&mut answer).await.unwrap(), 0, "the connection stays open");
        }
        seen.insert(answer);
        connections.push(connection);
    }
    let bodies =
        seen.iter().map(|answer| String::from_utf8_lossy(answer).rsplit(' ').next().unwrap().to_owned());
    assert_eq!(bodies.collect::<HashSet<_>>().len(), Workers::count());

    shutdown.cancel();
    serving.await.unwrap();
    for mut connection in connections {
        assert_eq!(connection.read(&mut [0; 1]).await.unwrap(), 0, "who sends nothing more is let go");
    }
}
