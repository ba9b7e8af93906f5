//! The gateway in front of every kind of upstream, and of several.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod served;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use admit_listen::{Tls, TlsFiles};
use admit_server::gateway::Gateway;
use admit_server::metrics::Metrics;
use admit_server::policy::{Keys, Policy};
use admit_server::reload::Running;
use admit_server::source::Source;
use admit_store::AnyStore;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::routing::{get, post};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use served::{OPEN, Server, echo, upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tower::Service;

/// Longer than anything takes that happens at once, and shorter than any limit that a test does not set.
const SOON: Duration = Duration::from_secs(20);

/// The gateway with these members at the top of its policy.
async fn gateway(members: &str) -> (Server, Metrics) {
    Server::gateway_with(&format!("{members}\n{OPEN}"), Keys::default()).await
}

/// Sends a request by HTTP/2.
async fn http2(gateway: &Server, request: http::request::Builder, path: &str) -> http::Response<Incoming> {
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Body>();
    let request = request.uri(format!("http://{}{path}", gateway.address)).body(Body::empty()).unwrap();
    client.request(request).await.unwrap()
}

async fn json(response: http::Response<Incoming>) -> Value {
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

/// An address where nobody listens.
async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

fn failures(metrics: &Metrics, kind: &str) -> usize {
    let text = metrics.encode().unwrap();
    let name = format!("admit_upstream_failures_total{{kind=\"{kind}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
}

/// Answers with what it got, and with trailers as gRPC has them.
async fn grpc(request: Request) -> http::Response<Body> {
    let version = request.version();
    let te = request.headers().get("te").cloned().unwrap_or(HeaderValue::from_static("none"));
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("7"))]);
    let frames = [Frame::data(Bytes::from(format!("{version:?}"))), Frame::trailers(trailers)];
    let body = StreamBody::new(futures::stream::iter(frames.map(Ok::<_, std::io::Error>)));
    http::Response::builder()
        .header("x-te", te)
        .header("trailer", "grpc-status")
        .body(Body::new(body))
        .unwrap()
}

#[tokio::test]
async fn grpc_passes_to_an_upstream_that_speaks_http_2_in_the_clear() {
    let upstream = Server::start(Router::new().fallback(grpc)).await;
    let (gateway, _) = gateway(&format!("upstream = \"h2c://{}\"", upstream.address)).await;
    let request = Request::builder().method(Method::POST).header("te", "trailers");
    let response = http2(&gateway, request, "/a.B/C").await;
    assert_eq!(
        (&response.headers()["x-te"], response.version()),
        (&"trailers".parse().unwrap(), Version::HTTP_2)
    );
    let whole = response.into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["grpc-status"], "7");
    assert_eq!(whole.to_bytes(), "HTTP/2.0");
    // HTTP/1.1 clients get there as well, and trailers pass to those that take them.
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let ask = b"GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close\r\n\r\n";
    stream.write_all(ask).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("\r\nHTTP/2.0\r\n0\r\ngrpc-status: 7\r\n"), "{answer}");
}

#[tokio::test]
async fn a_client_of_http_2_gets_to_an_upstream_of_http_1() {
    let upstream = upstream().await;
    let (gateway, _) = gateway(&format!("upstream = \"http://{}\"", upstream.address)).await;
    let request = Request::builder().header("cookie", "a=1").header("cookie", "b=2").header("te", "trailers");
    let response = http2(&gateway, request, "/x?y").await;
    assert!(!response.headers().contains_key("connection"), "{:?}", response.headers());
    let seen = json(response).await;
    let headers = seen["headers"].as_array().unwrap();
    let has = |name: &str, value: &str| headers.contains(&json!([name, value]));
    let host = gateway.address.to_string();
    assert!(has("host", &host) && has("x-forwarded-host", &host) && has("te", "trailers"), "{seen}");
    assert!(has("cookie", "a=1; b=2") && seen["path"] == "/x?y", "{seen}");
}

/// The gateway's own answers had a body, which the answer to a HEAD never has: the client reset the stream, and saw neither
/// the 429 nor when to come again.
#[tokio::test]
async fn a_head_over_http_2_that_is_refused_is_told_so() {
    let upstream = upstream().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("admit.toml");
    let route = "[[routes]]\nmatch = \"* /{*path}\"\nbudgets = [\"x\"]";
    let budget = "[budgets.x]\nrate = \"1/hour\"\nby = \"ip\"";
    std::fs::write(&file, format!("upstream = \"http://{}\"\n{budget}\n{route}\n", upstream.address))
        .unwrap();
    let source = Source::from(file);
    let read = source.read();
    let rules = read.policy.as_ref().unwrap().0.rules().unwrap();
    let store = AnyStore::open("memory:", rules).await.unwrap();
    let (running, _reloader) = Running::start(source, read, store, Metrics::default()).await.unwrap();
    let gateway = Server::start_tls(running.answers(), None).await; // As the program has it: without a router.
    for (status, retry_after) in [(200, None), (429, Some("3600"))] {
        let response = http2(&gateway, Request::builder().method(Method::HEAD), "/a").await;
        let told = response.headers().get("retry-after").map(|seconds| seconds.to_str().unwrap());
        assert_eq!((response.status().as_u16(), told), (status, retry_after));
        assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty());
    }
}

#[tokio::test]
async fn an_encrypted_upstream_is_checked_and_spoken_to_in_its_protocol() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, pem: String| {
        let file = directory.path().join(name);
        std::fs::write(&file, pem).unwrap();
        file
    };
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = file("server.pem", issued.cert.pem());
    let key = file("server.key", issued.signing_key.serialize_pem());
    let tls = Tls::load(&TlsFiles { certificate: certificate.clone(), key, client_ca: None }).unwrap();
    let switch = get(async |mut request: Request| {
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut io = hyper_util::rt::TokioIo::new(upgraded.await.unwrap());
            io.write_all(b"switched").await.unwrap();
        });
        (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "x")], Body::empty())
    });
    let router = Router::new().route("/echo", get(echo)).route("/switch", switch).fallback(grpc);
    let upstream = Server::start_tls(router, Some(tls)).await;
    let members = format!("upstream = \"https://{}\"\nupstream_ca = {certificate:?}", upstream.address);
    let (trusting, _) = gateway(&members).await;
    let whole = http2(&trusting, Request::builder(), "/").await.into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["grpc-status"], "7");
    assert_eq!(whole.to_bytes(), "HTTP/2.0");
    let headers = trusting.get("/echo").await.json()["headers"].to_string();
    let forwarded = format!("[\"x-forwarded-host\",\"{}\"]", trusting.address);
    assert!(headers.contains(&forwarded) && !headers.contains("[\"host\""), "{headers}");

    // HTTP/2 has no upgrades: they go by HTTP/1.1.
    let mut stream = TcpStream::connect(trusting.address).await.unwrap();
    let ask = b"GET /switch HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    stream.write_all(ask).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.ends_with("\r\n\r\nswitched"), "{answer}");

    // Another's certificate is no proof.
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let other = file("other.pem", other.cert.pem());
    let members = format!("upstream = \"https://{}\"\nupstream_ca = {other:?}", upstream.address);
    let (doubting, metrics) = gateway(&members).await;
    assert_eq!(doubting.get("/").await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(failures(&metrics, "connect"), 1);
}

#[tokio::test]
async fn several_upstreams_take_turns_and_one_that_is_away_is_left_out() {
    let told =
        |name: &'static str| Router::new().fallback(async move |body: Bytes| format!("{name}{}", body.len()));
    let (one, two) = (Server::start(told("one")).await, Server::start(told("two")).await);
    let members = format!(
        "upstream = [\"http://{}\", \"http://{}\", \"http://{}\"]",
        one.address,
        nobody().await,
        two.address
    );
    let (gateway, metrics) = gateway(&members).await;
    let mut answers = Vec::new();
    for _ in 0..9 {
        let reply = gateway.send(Request::builder().method(Method::POST), "/", "body").await;
        assert_eq!(reply.status, 200);
        answers.push(reply.body);
    }
    let count = |name: &str| answers.iter().filter(|answer| **answer == format!("{name}4")).count();
    assert!(count("one") >= 3 && count("two") >= 3 && count("one") + count("two") == 9, "{answers:?}");
    assert_eq!(failures(&metrics, "connect"), 1, "it is asked once, and then left out");
}

#[tokio::test]
async fn what_was_sent_is_not_sent_again_and_without_any_upstream_it_is_502() {
    let runs = Arc::new(AtomicUsize::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let counted = runs.clone();
    let breaking = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let members = format!("upstream = [\"http://{address}\", \"http://{address}\"]");
    let (breaks_off, metrics) = gateway(&members).await;
    let reply = breaks_off.send(Request::builder().method(Method::POST), "/", "pay").await;
    assert_eq!((reply.status, runs.load(Ordering::SeqCst)), (StatusCode::BAD_GATEWAY, 1));
    assert_eq!(failures(&metrics, "broke_off"), 1);
    breaking.abort();

    let members = format!("upstream = [\"http://{}\", \"http://{}\"]", nobody().await, nobody().await);
    let (away, metrics) = gateway(&members).await;
    for asked in [2, 4] {
        assert_eq!(away.get("/").await.status, StatusCode::BAD_GATEWAY);
        assert_eq!(failures(&metrics, "connect"), asked, "each is tried though it is left out");
    }
}

/// Answers each request on a connection by the number of the connection and the host that was asked for, and closes it behind
/// the answer to `/last`, without having said so.
async fn numbered() -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = async move {
        for number in 1.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut head, mut piece) = (String::new(), [0; 1024]);
                loop {
                    let read = stream.read(&mut piece).await.unwrap();
                    head.push_str(str::from_utf8(&piece[..read]).unwrap());
                    if read == 0 {
                        return;
                    }
                    if !head.ends_with("\r\n\r\n") {
                        continue;
                    }
                    let host = head.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
                    let body = format!("{number} {host}");
                    let answer = match head.starts_with("GET /trailed ") {
                        true => format!(
                            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
                             {:x}\r\n{body}\r\n0\r\nx-sum: 1\r\n\r\n",
                            body.len()
                        ),
                        false => {
                            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                        }
                    };
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    if head.starts_with("GET /last ") {
                        return;
                    }
                    head.clear();
                }
            });
        }
    };
    (address, AbortOnDropHandle::new(tokio::spawn(accepting)))
}

#[tokio::test]
async fn a_connection_is_used_again_and_one_that_was_closed_meanwhile_is_replaced() {
    let (address, _accepting) = numbered().await;
    let (gateway, metrics) = gateway(&format!("upstream = \"http://{address}\"")).await;
    // On one connection, as each worker has connections of its own.
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    let mut ask = async |path: &str| {
        client.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
        let (mut answer, mut piece) = (String::new(), [0; 1024]);
        while !answer.ends_with(" a") {
            let read = client.read(&mut piece).await.unwrap();
            assert!(read > 0, "{answer}");
            answer.push_str(str::from_utf8(&piece[..read]).unwrap());
        }
        answer.lines().last().unwrap().to_owned()
    };
    for (path, number) in [("/", 1), ("/", 1), ("/last", 1), ("/", 2), ("/", 2)] {
        assert_eq!(ask(path).await, format!("{number} a"));
    }
    assert_eq!(failures(&metrics, "broke_off"), 0);
}

/// The end of a body with trailers is told by them. It was waited for once more, which no server does, so that each such
/// response cost its connection.
#[tokio::test]
async fn a_connection_is_used_again_after_trailers() {
    let (address, _accepting) = numbered().await;
    let (gateway, _) = gateway(&format!("upstream = \"http://{address}\"")).await;
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    for _ in 0..3 {
        client.write_all(b"GET /trailed HTTP/1.1\r\nhost: a\r\nte: trailers\r\n\r\n").await.unwrap();
        let (mut answer, mut piece) = (String::new(), [0; 1024]);
        while !answer.ends_with("\r\n0\r\nx-sum: 1\r\n\r\n") {
            let read = client.read(&mut piece).await.unwrap();
            assert!(read > 0, "{answer}");
            answer.push_str(str::from_utf8(&piece[..read]).unwrap());
        }
        assert!(answer.contains("\r\n1 a\r\n"), "{answer}");
    }
}

/// An upstream that answered before it had the whole request, whose client sent no more: the connection between them, which
/// nobody used any longer, stayed until the time between two pieces was over. One client could leave any number of them.
#[tokio::test]
async fn a_connection_whose_request_is_cut_is_closed_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (gateway, _) = gateway(&format!("upstream = \"http://{address}\"")).await;
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    client.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nfour").await.unwrap();
    let (mut upstream, _) = listener.accept().await.unwrap();
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    while !head.ends_with(b"\r\n\r\nfour") {
        let read = upstream.read(&mut piece).await.unwrap();
        head.extend_from_slice(&piece[..read]);
    }
    // Without a body, whose end would be noticed.
    upstream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let closed = async { while upstream.read(&mut piece).await.is_ok_and(|read| read > 0) {} };
    timeout(SOON, closed).await.expect("it is not kept for what does not come");
}

/// Likewise where the upstream reads no more of the request: what is sent waits for it, and not for the client.
#[tokio::test]
async fn a_connection_that_takes_no_more_of_its_request_is_closed_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (gateway, _) = gateway(&format!("upstream = \"http://{address}\"")).await;
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    client.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\n").await.unwrap();
    let (mut upstream, _) = listener.accept().await.unwrap();
    // Until there is room for no more on the way.
    let piece = vec![0; 1 << 20];
    while let Ok(written) = timeout(SOON / 20, client.write_all(&piece)).await {
        written.unwrap();
    }
    upstream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    // It still reads nothing, so that it sees the end of what it sends.
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    let closed = async {
        while upstream.write_all(b"x").await.is_ok() {
            tick.tick().await;
        }
    };
    timeout(SOON, closed).await.expect("it is not kept for what nobody takes");
}

/// A response that was dropped where no runtime is panicked in a destructor: its connection went back to the pool, which
/// began to watch for its end.
#[test]
fn a_response_is_dropped_also_without_a_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (address, _accepting) = runtime.block_on(numbered());
    let text = format!("upstream = \"http://{address}\"\n{OPEN}");
    let policy = Policy::parse("test", &text).unwrap_or_else(|errors| panic!("{:?}", errors.problems()));
    let mut gateway = Gateway::new(&policy, Metrics::default()).unwrap().unwrap();
    let request = Request::builder().uri("/").header("host", "a").body(Body::empty()).unwrap();
    let response = runtime.block_on(async {
        let mut response = gateway.call(request).await.unwrap();
        assert_eq!(response.body_mut().frame().await.unwrap().unwrap().data_ref().unwrap(), "1 a");
        response
    });
    drop(response);
}

#[tokio::test]
async fn a_request_of_http_1_0_without_a_host_has_that_of_the_upstream() {
    let (address, _accepting) = numbered().await;
    let (gateway, _) = gateway(&format!("upstream = \"http://{address}\"")).await;
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with(&format!("1 {address}")), "{answer}");
}

#[tokio::test]
async fn an_upstream_that_takes_too_long_is_504_or_breaks_off() {
    let never = get(async || std::future::pending::<&str>().await);
    let stops = get(async || {
        let first = futures::stream::iter([Ok::<_, std::io::Error>("first")]);
        Body::from_stream(futures::StreamExt::chain(first, futures::stream::pending()))
    });
    let drips = get(async || {
        let drops = futures::stream::unfold((), async |()| {
            let _ = timeout(Duration::from_millis(20), std::future::pending::<()>()).await;
            Some((Ok::<_, std::io::Error>("drop"), ()))
        });
        Body::from_stream(drops)
    });
    let router = Router::new().route("/never", never).route("/stops", stops).route("/drips", drips);
    let upstream = Server::start(router).await;
    let limited = async |limits: &str| {
        gateway(&format!("upstream = \"http://{}\"\nupstream_limits = {{ {limits} }}", upstream.address))
            .await
    };
    let (head, metrics) = limited("head = \"100ms\"").await;
    let reply = timeout(SOON, head.get("/never")).await.expect("it has a limit of its own");
    assert_eq!(
        (reply.status, &reply.json()["error"]),
        (StatusCode::GATEWAY_TIMEOUT, &json!("gateway_timeout"))
    );
    assert_eq!(failures(&metrics, "head_time"), 1);

    let broken = async |gateway: &Server, path: &str| {
        let response = http2(gateway, Request::builder(), path).await;
        assert_eq!(response.status(), 200);
        // By its own limit, and not by that of something else, which is longer.
        timeout(SOON, response.into_body().collect()).await.expect(path).unwrap_err();
    };
    let (idle, metrics) = limited("idle = \"100ms\"").await;
    broken(&idle, "/stops").await;
    assert_eq!(failures(&metrics, "idle_time"), 1);
    let (total, metrics) = limited("total = \"200ms\"").await;
    broken(&total, "/drips").await;
    assert_eq!(failures(&metrics, "total_time"), 1);
}

#[tokio::test]
async fn a_client_that_sends_nothing_more_is_408_and_a_slow_one_is_waited_for() {
    let upstream =
        Server::start(Router::new().route("/", post(async |body: Bytes| body.len().to_string()))).await;
    let limits = "upstream_limits = { idle = \"2s\", head = \"400ms\" }";
    let (gateway, metrics) = gateway(&format!("upstream = \"http://{}\"\n{limits}", upstream.address)).await;
    let mut stopping = TcpStream::connect(gateway.address).await.unwrap();
    stopping.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nfour").await.unwrap();
    let mut status = [0; 12];
    stopping.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 408");

    // Longer than a head may take, and with no pause as long as the idle time.
    let pieces = futures::stream::unfold(0, async |sent| {
        let pause = Duration::from_millis(80);
        let _ = timeout(pause, std::future::pending::<()>()).await;
        (sent < 8).then_some((Ok::<_, std::io::Error>("four"), sent + 1))
    });
    let reply =
        gateway.send(Request::builder().method(Method::POST), "/", Body::from_stream(Box::pin(pieces))).await;
    assert_eq!((reply.status, &reply.body[..]), (StatusCode::OK, &b"32"[..]));
    assert!(
        !metrics.encode().unwrap().contains("admit_upstream_failures_total{"),
        "the upstream did no wrong"
    );
}

/// A WebSocket whose client had vanished without a word was held for ever, and with it one of the limited number of
/// connections.
#[tokio::test]
async fn an_upgraded_connection_on_which_nothing_passes_is_cut_off() {
    let switch = get(async |mut request: Request| {
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut io = hyper_util::rt::TokioIo::new(upgraded.await.unwrap());
            let _ = io.read_to_end(&mut Vec::new()).await; // It says nothing.
        });
        (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "x")], Body::empty())
    });
    let upstream = Server::start(Router::new().route("/", switch)).await;
    let limits = "upstream_limits = { idle = \"200ms\" }";
    let (gateway, _) = gateway(&format!("upstream = \"http://{}\"\n{limits}", upstream.address)).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let ask = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    stream.write_all(ask).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.ends_with("\r\n\r\n"), "{answer}");
}

/// hyper sends no body with a GET whose length it does not know, so that the upstream saw none.
#[tokio::test]
async fn a_body_of_a_get_passes() {
    let upstream = upstream().await;
    let (gateway, _) = gateway(&format!("upstream = \"http://{}\"", upstream.address)).await;
    let pieces = futures::stream::iter(["one", "two"].map(Ok::<_, std::io::Error>));
    let request = Request::builder().header("transfer-encoding", "chunked");
    let seen = gateway.send(request, "/", Body::from_stream(pieces)).await.json();
    assert_eq!(seen["length"], 6, "{seen}");
}

/// An upstream of HTTP/2 that answers the head of the first request with these frames, and then takes each request.
async fn refuses_once(frames: &'static [u8]) -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let (mut refusing, _) = listener.accept().await.unwrap();
        refusing.read_exact(&mut [0; 24]).await.unwrap();
        refusing.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        let mut head = [0; 9];
        while head[3] != 1 {
            refusing.read_exact(&mut head).await.unwrap();
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            refusing.read_exact(&mut vec![0; length]).await.unwrap();
        }
        refusing.write_all(frames).await.unwrap();
        let accepted = listener.accept().await.unwrap().0;
        drop(refusing);
        let mut connection = h2::server::handshake(accepted).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let found = http::Response::builder().header("x-seen", request.uri().path()).body(()).unwrap();
            respond.send_response(found, true).unwrap();
        }
    });
    (address, AbortOnDropHandle::new(serving))
}

/// A request that an upstream of HTTP/2 said it had not processed was 502, though it could go elsewhere (RFC 9113, section
/// 8.7): each restart of such an upstream cost the requests that were on their way.
#[tokio::test]
async fn what_an_upstream_refuses_unread_is_sent_again() {
    // GOAWAY without an error, after which no stream is taken.
    let goes = refuses_once(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).await;
    let (gateway, metrics) = gateway(&format!("upstream = \"h2c://{}\"", goes.0)).await;
    let reply = gateway.send(Request::builder().method(Method::DELETE), "/going", "").await;
    assert_eq!((reply.status, reply.header("x-seen")), (StatusCode::OK, Some("/going")));
    assert_eq!((failures(&metrics, "refused"), failures(&metrics, "broke_off")), (1, 0));
}

/// By REFUSED_STREAM, which leaves the connection: it is asked once more, or the next upstream is.
#[tokio::test]
async fn a_refused_stream_is_sent_again_and_again_refused_it_is_502() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let refusing = AbortOnDropHandle::new(tokio::spawn(async move {
        let mut connection = h2::server::handshake(listener.accept().await.unwrap().0).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        }
    }));
    let (alone, metrics) = gateway(&format!("upstream = \"h2c://{address}\"")).await;
    assert_eq!(alone.get("/").await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(failures(&metrics, "refused"), 2, "it is asked once more, and that is all");
    drop(refusing);
}
