//! The layers on tonic's services.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::convert::Infallible;
use std::error::Error;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use admit::{Key, ManualClock};
use admit_tower::{BudgetLayer, BudgetPolicy, IdempotencyLayer, Idempotent, Limiter, Quota};
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use support::{INGEST, Store, clock, time};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::{Layer, Service, ServiceExt, service_fn};

/// Answers every call of `test.Echo` with OK.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl Service<Request<Body>> for Echo {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Status::ok("").into_http()))
    }
}

/// What tonic's server demands of a layer's service.
fn is_servable<S, B>(service: S) -> S
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>> + Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    service
}

/// One call a minute.
fn budgets(store: &Store, clock: &ManualClock) -> BudgetLayer<Store, impl BudgetPolicy + use<>> {
    BudgetLayer::new(Limiter::new(store.clone()).time(time(clock)), |_: &Parts| {
        vec![Quota::new(INGEST, Key::of("k"), "1/minute".parse().unwrap(), "1 call/minute")]
    })
}

fn ok<B>(_: Request<B>) -> Ready<Result<Response<Body>, Infallible>> {
    ready(Ok(Response::new(Body::empty())))
}

/// A client that claimed to call by gRPC was refused with the HTTP status 200. Where the layer stood behind a proxy that
/// asks whether a request may run, every refusal was leave to run, and so was every outage of the store. Its requests had no
/// idempotency keys either.
#[tokio::test]
async fn what_a_client_claims_to_speak_changes_no_answer_before_a_service_of_http() {
    let clock = clock();
    let store = Store::new(&clock);
    let once = IdempotencyLayer::new(store.clone(), |_: &Parts| Some(Idempotent::by_header("tenant")));
    let keyed = once.budgets(budgets(&store, &clock)).layer(service_fn(ok::<admit_tower::Body<Body>>));
    let held = budgets(&store, &clock).layer(service_fn(ok::<Body>));
    let claimed = || Request::post("/").header("content-type", "application/grpc");
    let ask = async |is_keyed: bool, request: http::request::Builder| {
        let request = request.body(Body::empty()).unwrap();
        let response = match is_keyed {
            true => keyed.clone().oneshot(request).await.unwrap().map(drop),
            false => held.clone().oneshot(request).await.unwrap().map(drop),
        };
        (response.status(), response.headers().contains_key("grpc-status"))
    };
    assert_eq!(ask(true, claimed()).await, (StatusCode::BAD_REQUEST, false), "its key is missing");
    assert_eq!(ask(false, claimed()).await, (StatusCode::TOO_MANY_REQUESTS, false));
    assert_eq!(
        ask(true, claimed().header("idempotency-key", "k")).await,
        (StatusCode::TOO_MANY_REQUESTS, false)
    );
    store.set_down(true);
    assert_eq!(ask(false, claimed()).await, (StatusCode::SERVICE_UNAVAILABLE, false));
}

#[tokio::test]
async fn a_tonic_client_reads_a_refusal_as_resource_exhausted_and_a_failure_as_unavailable() {
    let clock = clock();
    let store = Store::new(&clock);
    let budgets = budgets(&store, &clock).before_grpc();
    // gRPC calls pass the idempotency layer: their outcome is in trailers.
    let once = IdempotencyLayer::new(store.clone(), |_: &Parts| Some(Idempotent::by_header("tenant")));
    let service = is_servable(once.before_grpc().budgets(budgets).layer(Routes::new(Echo).prepare()));
    let call = async || {
        let request = Request::post("/test.Echo/Call").header("content-type", "application/grpc");
        let response = service.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        Status::from_header_map(response.headers()).unwrap()
    };
    assert_eq!(call().await.code(), Code::Ok);

    let refused = call().await;
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "1 call/minute"));
    assert_eq!(refused.metadata().get("retry-after").unwrap(), "60");

    store.set_down(true);
    let failed = call().await;
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.metadata().get("retry-after").is_none());
    assert!(failed.metadata().get("x-correlation-id").is_some());
}
