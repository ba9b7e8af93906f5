//! HTTP/2 on the port of HTTP/1.1, and its limits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod served;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use admit_listen::{Answers, Limits};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use axum::routing::get;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use served::{SOON, Served, Told, read};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A frame of type 4 without settings.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// A connection of HTTP/2, and its end.
struct Client {
    requests: SendRequest<Body>,
    ended: JoinHandle<hyper::Result<()>>,
}

impl Client {
    async fn connect(served: &Served) -> Self {
        let stream = TcpStream::connect(served.address).await.unwrap();
        let (requests, connection) =
            Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await.unwrap();
        Self { requests, ended: tokio::spawn(connection) }
    }

    async fn send(&self, headers: HeaderMap) -> hyper::Result<Response<Incoming>> {
        let mut request = Request::get("http://a/").body(Body::empty()).unwrap();
        request.headers_mut().extend(headers);
        self.requests.clone().send_request(request).await
    }

    async fn get(&self) -> String {
        text(self.send(HeaderMap::new()).await.unwrap()).await
    }
}

async fn text(response: Response<Incoming>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

fn hello() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// A body that has no end, and tells when it is dropped.
fn endless(tell: mpsc::UnboundedSender<()>) -> Router {
    Router::new().route(
        "/",
        get(async move || {
            let told = Told(tell.clone());
            Body::from_stream(futures::stream::repeat_with(move || {
                let _held_as_long_as_the_body = &told;
                Ok::<_, std::io::Error>(vec![0_u8; 1 << 14])
            }))
        }),
    )
}

#[tokio::test]
async fn both_protocols_have_one_port() {
    let served = Served::start(hello(), Limits::default()).await;
    let answer = served.answer("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(answer.ends_with("hello"), "{answer}");
    let client = Client::connect(&served).await;
    assert_eq!((client.get().await, client.get().await), ("hello".to_owned(), "hello".to_owned()));
    drop(client);
    let url = format!("http://{}/", served.address);
    for version in ["--http2-prior-knowledge", "--http1.1"] {
        let curl = tokio::process::Command::new("curl").args(["-sS", version, &url]).output().await;
        match curl {
            Ok(curl) => assert_eq!(String::from_utf8(curl.stdout).unwrap(), "hello", "{version}"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "there is curl"),
        }
    }
    served.stop().await;
}

/// hyper leaves out the body of such an answer over HTTP/1.1 only. A router did it over HTTP/2; what answers without one sent
/// it, and its client reset the stream and never saw the answer.
#[tokio::test]
async fn the_answer_to_a_head_has_the_length_of_its_body_and_no_body() {
    let answers = Answers::new(|request| {
        let body = match request.uri().path() {
            "/passed" => Body::empty(), // As the answer to a HEAD that was sent on.
            "/endless" => Body::from_stream(futures::stream::pending::<std::io::Result<Bytes>>()),
            _ => Body::from("hello"),
        };
        Box::pin(std::future::ready(Response::new(body)))
    });
    let served = Served::start(answers, Limits::default()).await;
    let client = Client::connect(&served).await;
    for (path, length) in [("", Some("5")), ("passed", None), ("endless", None)] {
        let request = Request::head(format!("http://a/{path}")).body(Body::empty()).unwrap();
        let response = client.requests.clone().send_request(request).await.unwrap();
        let told = response.headers().get("content-length").map(|length| length.to_str().unwrap());
        assert_eq!((response.status(), told), (StatusCode::OK, length), "/{path}");
        assert_eq!(text(response).await, "", "/{path}");
    }
    assert_eq!(client.get().await, "hello");
    drop(client);
    served.stop().await;
}

#[tokio::test]
async fn a_preface_that_comes_in_pieces_is_one_and_trailers_pass() {
    let trailed = get(async || {
        let trailers =
            HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
        let frames = [Frame::data(Bytes::from_static(b"hello")), Frame::trailers(trailers)];
        Body::new(StreamBody::new(futures::stream::iter(frames.map(Ok::<_, std::io::Error>))))
    });
    let served = Served::start(Router::new().route("/", trailed), Limits::default()).await;
    let client = Client::connect(&served).await;
    let whole = client.send(HeaderMap::new()).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["grpc-status"], "0");

    let mut stream = TcpStream::connect(served.address).await.unwrap();
    for byte in PREFACE {
        stream.write_all(&[*byte]).await.unwrap();
    }
    stream.write_all(SETTINGS).await.unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[3], 4, "the first frame is SETTINGS: {head:?}");
    drop((client, stream));
    served.stop().await;
}

#[tokio::test]
async fn who_is_slow_before_or_within_the_preface_is_not_waited_for() {
    let served = Served::start(hello(), Limits { head_time: SOON, ..Limits::default() }).await;
    for sent in [&b""[..], b"P", &PREFACE[..23]] {
        assert_eq!(served.answer(sent).await, "", "{sent:?}");
    }
    served.stop().await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused_and_the_listener_lives() {
    let served = Served::start(hello(), Limits::default()).await;
    let with = |count: usize, length: usize| {
        let header = |i| (format!("x-{i}").parse().unwrap(), "y".repeat(length).parse().unwrap());
        HeaderMap::from_iter((0..count).map(header))
    };
    for (count, length) in [(65, 1), (1, 17 << 10)] {
        let client = Client::connect(&served).await;
        let status = client.send(with(count, length)).await.map(|response| response.status());
        assert_eq!(status.unwrap(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "{count} {length}");
        assert_eq!(client.send(with(60, 1)).await.unwrap().status(), 200);
    }
    // 1 MiB ends the connection, whichever protocol it is.
    let client = Client::connect(&served).await;
    let status = client.send(with(32, 32 << 10)).await.map(|response| response.status());
    assert!(status.as_ref().map_or(true, |status| *status == 431), "{status:?}");
    let _ = client.ended.await.unwrap();
    let mut stream = served.send("GET / HTTP/1.1\r\nHost: a\r\n").await;
    let _ = stream.write_all("x: y\r\n".repeat(1 << 17).as_bytes()).await; // It may be cut off.
    let answer = read(stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(Client::connect(&served).await.get().await, "hello");
    served.stop().await;
}

#[tokio::test]
async fn many_requests_share_a_connection_and_no_more_than_its_streams_run_at_once() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let highest = most.clone();
    let counting = get(async move || {
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        now.fetch_sub(1, Ordering::SeqCst);
        "hello"
    });
    let served =
        Served::start(Router::new().route("/", counting), Limits { streams: 8, ..Limits::default() }).await;
    let client = Client::connect(&served).await;
    client.get().await; // From then on it knows how many it may send.
    let answers = futures::future::join_all((0..2_000).map(|_| client.get())).await;
    assert!(answers.iter().all(|answer| answer == "hello"));
    assert!((2..=8).contains(&highest.load(Ordering::SeqCst)), "{highest:?}");
    drop(client);
    served.stop().await;
}

/// The connection is not blocked: other streams go on.
#[tokio::test]
async fn a_stream_that_nobody_reads_is_reset_alone() {
    let (tell, mut dropped) = mpsc::unbounded_channel();
    let router = endless(tell).route("/hello", get(async || "hello"));
    let served = Served::start(router, Limits { stall_time: SOON, ..Limits::default() }).await;
    let client = Client::connect(&served).await;
    let mut unread = client.send(HeaderMap::new()).await.unwrap().into_body();
    dropped.recv().await.unwrap();
    let error = loop {
        if let Err(error) = unread.frame().await.unwrap() {
            break error;
        }
    };
    assert!(!error.is_closed(), "{error:?}");
    let request = Request::get("http://a/hello").body(Body::empty()).unwrap();
    assert_eq!(text(client.requests.clone().send_request(request).await.unwrap()).await, "hello");
    drop(client);
    served.stop().await;
}

/// hyper asks for no more of a body before what it gave is sent. A body of one large piece was asked for nothing for as long
/// as its reader took, and reset though it was read all the time.
#[tokio::test]
async fn a_slow_reader_of_a_large_piece_is_waited_for() {
    let large = get(async || {
        let pieces = [vec![7_u8; 1 << 20], vec![7]].map(Ok::<_, std::io::Error>);
        Body::from_stream(futures::stream::iter(pieces))
    });
    let limits = Limits { stall_time: 5 * SOON, ..Limits::default() };
    let served = Served::start(Router::new().route("/", large), limits).await;
    let stream = TcpStream::connect(served.address).await.unwrap();
    let mut http = Builder::new(TokioExecutor::new());
    http.initial_stream_window_size(32 << 10).initial_connection_window_size(32 << 10);
    let (requests, connection) = http.handshake(TokioIo::new(stream)).await.unwrap();
    let client = Client { requests, ended: tokio::spawn(connection) };
    let mut body = client.send(HeaderMap::new()).await.unwrap().into_body();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        length += frame.unwrap().data_ref().unwrap().len();
        let _ = tokio::time::timeout(SOON / 5, std::future::pending::<()>()).await;
    }
    assert_eq!(length, (1 << 20) + 1);
    drop(client);
    served.stop().await;
}

#[tokio::test]
async fn a_peer_that_has_vanished_is_found() {
    let (tell, mut dropped) = mpsc::unbounded_channel();
    let held = get(async move || {
        let _told = Told(tell.clone());
        std::future::pending::<&str>().await
    });
    let limits = Limits { head_time: SOON, stall_time: SOON, ..Limits::default() };
    let served = Served::start(Router::new().route("/", held), limits).await;
    // GET / of http://a, in the static table of HPACK, on the first stream; pings are not answered.
    let block = [0x82, 0x86, 0x84, 0x01, 0x01, b'a'];
    let head = [0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1];
    let stream = served.send([PREFACE, SETTINGS, &head, &block].concat()).await;
    dropped.recv().await.unwrap();
    drop(stream);
    served.stop().await;
}

#[tokio::test]
async fn a_connection_on_which_nothing_runs_ends_after_a_while() {
    let served = Served::start(hello(), Limits { idle_time: SOON, ..Limits::default() }).await;
    let client = Client::connect(&served).await;
    assert_eq!(client.get().await, "hello");
    client.ended.await.unwrap().unwrap();
    // Who does not answer is cut off.
    let mut silent = served.send([PREFACE, SETTINGS].concat()).await;
    silent.read_to_end(&mut Vec::new()).await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn what_runs_is_finished_after_the_stop_and_the_connection_takes_no_more() {
    let (tell, mut started) = mpsc::unbounded_channel();
    let go_on = Arc::new(Notify::new());
    let wait = go_on.clone();
    let finishes = get(async move || {
        tell.send(()).unwrap();
        wait.notified().await;
        "finished"
    });
    let served = Served::start(Router::new().route("/", finishes), Limits::default()).await;
    let client = Client::connect(&served).await;
    let other = Client::connect(&served).await;
    let running = client.send(HeaderMap::new());
    let stop = async {
        started.recv().await.unwrap();
        served.shutdown.cancel();
        other.ended.await.unwrap().unwrap(); // Nothing ran there.
        go_on.notify_one();
    };
    let (answer, ()) = tokio::join!(running, stop);
    assert_eq!(text(answer.unwrap()).await, "finished");
    client.ended.await.unwrap().unwrap();
    served.serving.await.unwrap();
}
