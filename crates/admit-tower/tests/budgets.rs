//! The budget layer over real HTTP, and what it does to the service behind it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use admit::{Cost, Key};
use admit_tower::{BudgetLayer, BudgetPolicy, CorrelationId, Dialect, Limiter, Problem, Quota, Rejection};
use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use support::{BURST, INGEST, Seen, Server, Store, clock, text, time};
use tower::{Layer, Service, ServiceExt};

fn policy() -> impl BudgetPolicy {
    |request: &Parts| {
        let key = Key::hashed(request.headers.get("x-api-key").map_or(&b""[..], |key| key.as_bytes()));
        let cost = request.headers.get("x-cost").map_or(1.0, |cost| cost.to_str().unwrap().parse().unwrap());
        let reason = "3 requests/minute for GET /";
        vec![
            Quota::new(INGEST, key, "3/minute".parse().unwrap(), reason).cost(Cost::new(cost).unwrap()),
            Quota::new(BURST, key, "10/second".parse().unwrap(), "10 requests/second"),
        ]
    }
}

fn router(layer: BudgetLayer<Store, impl BudgetPolicy>) -> Router {
    Router::new().route("/", get(|| async { "hello" })).layer(layer)
}

#[tokio::test]
async fn a_client_is_told_what_is_left_then_refused_then_admitted_after_the_wait() {
    let clock = clock();
    let limiter = Limiter::new(Store::new(&clock)).time(time(&clock));
    let server = Server::start(router(BudgetLayer::new(limiter, policy()))).await;
    let get = || server.send(Request::get("/").header("x-api-key", "k"), "");

    let first = get().await;
    assert_eq!((first.status(), text(&first)), (StatusCode::OK, "hello"));
    assert_eq!(first.headers()["ratelimit-policy"], r#""ingest";q=3;w=60, "burst";q=10;w=1"#);
    assert_eq!(first.headers()["ratelimit"], r#""ingest";r=2;t=20, "burst";r=9;t=1"#);
    assert!(!first.headers().contains_key("retry-after"));
    get().await;
    get().await;
    clock.advance(Duration::from_micros(1));

    let refused = get().await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert_eq!(refused.headers()["retry-after"], "20");
    assert_eq!(refused.headers()["ratelimit-policy"], r#""ingest";q=3;w=60, "burst";q=10;w=1"#);
    assert_eq!(refused.headers()["ratelimit"], r#""ingest";r=0;t=20"#);
    assert_eq!(
        text(&refused),
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","#,
            r#""status":429,"detail":"3 requests/minute for GET /","violated-policies":["ingest"],"#,
            r#""error":"rate_limit_exceeded","reason":"3 requests/minute for GET /","#,
            r#""retry_after_seconds":20,"limit_window":"60s"}"#
        )
    );

    clock.advance(Duration::from_secs(20));
    assert_eq!(get().await.status(), StatusCode::OK);
    assert_eq!(
        server.send(Request::get("/").header("x-api-key", "other"), "").await.status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_cost_that_never_fits_is_told_no_wait() {
    let clock = clock();
    let limiter = Limiter::new(Store::new(&clock)).time(time(&clock));
    let server = Server::start(router(BudgetLayer::new(limiter, policy()))).await;
    let refused = server.send(Request::get("/").header("x-cost", "3.5"), "").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(!refused.headers().contains_key("retry-after") && !refused.headers().contains_key("ratelimit"));
    assert!(text(&refused).contains("never fits") && !text(&refused).contains("retry_after_seconds"));
}

#[tokio::test]
async fn a_refused_head_has_the_headers_and_no_body() {
    let clock = clock();
    let limiter = Limiter::new(Store::new(&clock)).time(time(&clock)).dialect(Dialect::Legacy);
    let server = Server::start(router(BudgetLayer::new(limiter, policy()))).await;
    let head = || server.send(Request::head("/").header("x-api-key", "k"), "");
    for left in ["2", "1", "0"] {
        assert_eq!(head().await.headers()["x-ratelimit-remaining"], left);
    }
    let refused = head().await;
    assert_eq!((refused.status(), text(&refused)), (StatusCode::TOO_MANY_REQUESTS, ""));
    assert_eq!(
        (&refused.headers()["retry-after"], &refused.headers()["x-ratelimit-reset"]),
        (&20.into(), &20.into())
    );
    assert_eq!(refused.headers()["x-ratelimit-limit"], "3");
    assert!(!refused.headers().contains_key("ratelimit"));
}

#[tokio::test]
async fn an_unavailable_store_is_no_refusal_and_its_cause_stays_inside() {
    let (clock, seen) = (clock(), Seen::default());
    let store = Store::new(&clock);
    let limiter = Limiter::new(store.clone()).time(time(&clock)).observer(seen.clone());
    let server = Server::start(router(BudgetLayer::new(limiter, policy()))).await;
    store.set_down(true);
    let failed = server.send(Request::get("/"), "").await;
    assert_eq!(failed.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(!failed.headers().contains_key("retry-after") && !failed.headers().contains_key("ratelimit"));
    let id = failed.headers()["x-correlation-id"].to_str().unwrap();
    assert!(text(&failed).contains("temporary-reduced-capacity") && text(&failed).contains(id));
    assert!(!text(&failed).contains("fire") && !text(&failed).contains("violated-policies"));
    assert_eq!(seen.take(), ["Unavailable(Scope(ingest))", "Unavailable(Scope(burst))"]);

    store.set_down(false);
    assert_eq!(server.send(Request::get("/"), "").await.status(), StatusCode::OK);
    assert_eq!(seen.take(), ["Granted(Scope(ingest))", "Granted(Scope(burst))"]);
}

#[tokio::test]
async fn a_budget_that_fails_open_admits_and_is_counted() {
    let (clock, seen) = (clock(), Seen::default());
    let store = Store::new(&clock);
    store.set_down(true);
    let limiter = Limiter::new(store).time(time(&clock)).observer(seen.clone());
    let quota = |scope| Quota::new(scope, Key::of("k"), "1/second".parse().unwrap(), "1 request/second");
    let both = BudgetLayer::new(limiter.clone(), move |_: &Parts| vec![quota(INGEST).fail_open()]);
    let server = Server::start(router(both)).await;
    let admitted = server.send(Request::get("/"), "").await;
    assert_eq!(admitted.status(), StatusCode::OK);
    assert!(!admitted.headers().contains_key("ratelimit"));
    assert_eq!(seen.take(), ["FailedOpen(Scope(ingest))"]);

    let mixed = BudgetLayer::new(limiter, move |_: &Parts| vec![quota(INGEST).fail_open(), quota(BURST)]);
    let server = Server::start(router(mixed)).await;
    assert_eq!(server.send(Request::get("/"), "").await.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn wrong_charges_are_an_internal_error_even_where_the_budget_fails_open() {
    let clock = clock();
    let limiter = Limiter::new(Store::new(&clock)).time(time(&clock));
    let unknown = admit::Scope::from_static("unknown");
    let layer = BudgetLayer::new(limiter, move |_: &Parts| {
        vec![Quota::new(unknown.clone(), Key::of("k"), "1/second".parse().unwrap(), "").fail_open()]
    });
    let failed = Server::start(router(layer)).await.send(Request::get("/"), "").await;
    assert_eq!(failed.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!text(&failed).contains("scope"), "{}", text(&failed));
}

#[tokio::test]
async fn an_application_says_refusals_in_its_own_words() {
    let clock = clock();
    let render = |request: &Parts, rejection: &Rejection| -> Problem {
        let id = CorrelationId::of(request).to_string();
        let problem = rejection.problem().with("instance", request.uri.path()).with("correlation_id", id);
        problem.with("code", "session_limit_exceeded").without_header(&http::header::RETRY_AFTER)
    };
    let limiter = Limiter::new(Store::new(&clock)).time(time(&clock)).dialect(Dialect::None).render(render);
    let layer = BudgetLayer::new(limiter, policy());
    let inner = tower::service_fn(|_: Request<Empty<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
    });
    let mut request = Request::get("/sessions").header("x-cost", "3").body(Empty::new()).unwrap();
    request.extensions_mut().insert(CorrelationId::new("abc").unwrap());
    let service = layer.layer(inner);
    assert_eq!(service.clone().oneshot(request.clone()).await.unwrap().status(), StatusCode::OK);
    let refused = service.oneshot(request).await.unwrap();
    assert_eq!(refused.headers().len(), 1, "{:?}", refused.headers());
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    let body = std::str::from_utf8(&body).unwrap();
    let own = r#""instance":"/sessions","correlation_id":"abc","code":"session_limit_exceeded"}"#;
    assert!(body.ends_with(own), "{body}");
}

/// Errs if it is called without having been asked whether it is ready.
#[derive(Default)]
struct Picky {
    ready: bool,
}

impl Clone for Picky {
    fn clone(&self) -> Self {
        Self { ready: false }
    }
}

impl Service<Request<Empty<Bytes>>> for Picky {
    type Response = Response<Full<Bytes>>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Empty<Bytes>>) -> Self::Future {
        std::future::ready(match self.ready {
            true => Ok(Response::new(Full::new(Bytes::from_static(b"ready")))),
            false => Err("called without a look at its readiness"),
        })
    }
}

#[tokio::test]
async fn the_service_that_said_it_was_ready_is_the_one_that_is_called() {
    let clock = clock();
    let limiter = Limiter::new(Store::new(&clock)).time(time(&clock));
    let mut service = BudgetLayer::new(limiter, policy()).layer(Picky::default());
    for _ in 0..3 {
        let request = Request::get("/").body(Empty::new()).unwrap();
        // The service's own error type comes through.
        let response: Result<_, &'static str> = service.ready().await.unwrap().call(request).await;
        assert_eq!(response.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_grpc_client_is_answered_in_grpc_over_http_2() {
    let clock = clock();
    let store = Store::new(&clock);
    let limiter = Limiter::new(store.clone()).time(time(&clock));
    let inner = tower::service_fn(|_: Request<hyper::body::Incoming>| async {
        let mut response = Response::new(Full::new(Bytes::from_static(b"\0\0\0\0\0")));
        response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        Ok::<_, Infallible>(response)
    });
    let service = BudgetLayer::new(limiter, policy()).before_grpc().layer(inner);
    let (near, far) = tokio::io::duplex(64 * 1024);
    let server = tokio::spawn(async move {
        let service = hyper_util::service::TowerToHyperService::new(service);
        let io = hyper_util::rt::TokioIo::new(far);
        let _ = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
            .serve_connection(io, service)
            .await;
    });
    let io = hyper_util::rt::TokioIo::new(near);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut client, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    let connection = tokio::spawn(connection);
    let call = |cost: &str| {
        Request::post("http://local/pkg.Service/Method")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("x-cost", cost)
            .body(Full::new(Bytes::from_static(b"\0\0\0\0\0")))
            .unwrap()
    };
    let granted = client.send_request(call("3")).await.unwrap();
    assert!(!granted.headers().contains_key("grpc-status"));

    let refused = client.send_request(call("1")).await.unwrap();
    assert_eq!((refused.status(), &refused.headers()["grpc-status"]), (StatusCode::OK, &8.into()));
    assert_eq!(refused.headers()["content-type"], "application/grpc");
    assert_eq!(refused.headers()["grpc-message"], "3 requests/minute for GET /");
    assert_eq!(refused.headers()["retry-after"], "20");
    assert!(refused.into_body().collect().await.unwrap().to_bytes().is_empty());

    store.set_down(true);
    let failed = client.send_request(call("1")).await.unwrap();
    assert_eq!(failed.headers()["grpc-status"], "14");
    assert!(!failed.headers().contains_key("retry-after"));
    drop(client);
    connection.abort();
    server.abort();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_counts_as_unavailable() {
    #[derive(Clone)]
    struct Hanging(Store);

    impl admit::BudgetStore for Hanging {
        fn rules(&self) -> &admit::Rules {
            self.0.rules()
        }
        async fn take(
            &self,
            _: &[admit::Charge],
            _: admit::Now,
        ) -> Result<admit::Decision, admit::TakeError> {
            std::future::pending().await
        }
        async fn peek(
            &self,
            _: &[admit::Charge],
            _: admit::Now,
        ) -> Result<admit::Decision, admit::TakeError> {
            std::future::pending().await
        }
        async fn refund(&self, _: &[admit::Charge]) -> Result<(), admit::TakeError> {
            std::future::pending().await
        }
        async fn delete_idle(&self, _: admit::Now) -> Result<u64, admit::Unavailable> {
            std::future::pending().await
        }
    }

    let layer = BudgetLayer::new(Limiter::new(Hanging(Store::new(&clock()))), policy());
    let request = Request::get("/").body(Empty::new()).unwrap();
    let response = layer.layer(Picky::default()).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_hundred_at_once_get_exactly_what_there_is() {
    let clock = clock();
    let limiter = Limiter::new(Store::new(&clock)).time(time(&clock));
    let server = Arc::new(Server::start(router(BudgetLayer::new(limiter, policy()))).await);
    let granted = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (server, granted) = (Arc::clone(&server), Arc::clone(&granted));
        tasks.spawn(async move {
            if server.send(Request::get("/"), "").await.status() == StatusCode::OK {
                granted.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(granted.load(Ordering::SeqCst), 3);
}
