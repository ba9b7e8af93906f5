//! What keeps a keyed run from being delayed, and from holding its place for ever.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use admit::idempotency::{OnLapse, Terms};
use admit_tower::{IdempotencyLayer, IdempotencyPolicy, Idempotent};
use bytes::Bytes;
use futures::StreamExt;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use support::{Seen, Store, clock, time};
use tokio::time::timeout;
use tower::{Layer, ServiceExt};

fn keyed(key: &str) -> Request<Empty<Bytes>> {
    Request::post("/jobs").header("idempotency-key", key).body(Empty::new()).unwrap()
}

const SECOND: Duration = Duration::from_secs(1);

/// The lease is 60 s, and the store's time limit 5.
fn layer(store: &Store, seen: &Seen) -> IdempotencyLayer<Store, impl IdempotencyPolicy + use<>> {
    with_lease(60 * SECOND, store, seen)
}

fn with_lease(
    lease: Duration,
    store: &Store,
    seen: &Seen,
) -> IdempotencyLayer<Store, impl IdempotencyPolicy + use<>> {
    let terms = Terms { lease, ..Terms::default() };
    let policy = move |_: &Parts| Some(Idempotent::by_header("tenant").terms(terms.clone()));
    IdempotencyLayer::new(store.clone(), policy).time(time(&clock())).observer(seen.clone())
}

/// Once the renewal was awaited where the handler's end should have been seen, so that a store that hung held back a
/// response that was there. And what was begun on the store may not be dropped half-way: its connection would be busy.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_holds_no_response_back_and_is_finished_all_the_same() {
    let (store, seen) = (Store::new(&clock()), Seen::default());
    store.renewals.hang.store(true, Ordering::SeqCst);
    let renewals = Arc::clone(&store.renewals);
    let inner = tower::service_fn(move |_: Request<_>| {
        let renewals = Arc::clone(&renewals);
        async move {
            renewals.begun.notified().await;
            Ok::<_, Infallible>(Response::new(Full::from("done")))
        }
    });
    let response = layer(&store, &seen).layer(inner).oneshot(keyed("a")).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "done");
    assert_eq!(
        store.renewals.in_flight.load(Ordering::SeqCst),
        1,
        "the response waited for the renewal's end"
    );
    assert_eq!(seen.take(), ["completed"]);

    store.renewals.go.add_permits(1);
    store.renewals.done.notified().await;
}

/// Once such a response was read until it ended, so that each held one of the places for runs for ever, and its client
/// never saw a byte.
#[tokio::test(start_paused = true)]
async fn a_response_that_never_ends_is_streamed_and_frees_the_place_of_its_run() {
    let (store, seen) = (Store::new(&clock()), Seen::default());
    let layer = layer(&store, &seen).max_runs(1);
    let inner = tower::service_fn(|_: Request<_>| async {
        let first = futures::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"tick")))]);
        Ok::<_, Infallible>(Response::new(StreamBody::new(first.chain(futures::stream::pending()))))
    });
    let service = layer.clone().layer(inner);
    let first = timeout(3_600 * SECOND, service.clone().oneshot(keyed("a"))).await;
    let mut endless = first.expect("the response is waited for for ever").unwrap().into_body();
    assert_eq!(endless.frame().await.unwrap().unwrap().into_data().unwrap(), "tick");
    layer.idle().await;
    assert_eq!(service.clone().oneshot(keyed("b")).await.unwrap().status(), StatusCode::OK);
    assert_eq!(service.oneshot(keyed("a")).await.unwrap().status(), StatusCode::CONFLICT);
    assert_eq!(seen.take(), ["tombstoned", "tombstoned", "gone"]);
}

/// Once a claim and a renewal were waited for as long as the store's time limit, also where the lease had ended by then.
#[tokio::test(start_paused = true)]
async fn a_lease_shorter_than_the_stores_time_limit_is_kept() {
    let (store, seen) = (Store::new(&clock()), Seen::default());
    store.renewals.hang.store(true, Ordering::SeqCst);
    let renewals = Arc::clone(&store.renewals);
    let inner = tower::service_fn(move |_: Request<_>| {
        let renewals = Arc::clone(&renewals);
        async move {
            // The first renewal hangs; the second is tried while the lease lasts.
            let second = async {
                renewals.begun.notified().await;
                renewals.begun.notified().await;
            };
            timeout(SECOND * 5 / 2, second).await.expect("no second renewal within the lease");
            Ok::<_, Infallible>(Response::new(Full::from("done")))
        }
    });
    let service = with_lease(3 * SECOND, &store, &seen).layer(inner);
    assert_eq!(service.clone().oneshot(keyed("a")).await.unwrap().status(), StatusCode::OK);

    // A claim whose lease has ended before its answer is there is not waited for.
    *store.claim_takes.lock().unwrap() = 4 * SECOND;
    let claimed = timeout(SECOND * 5 / 2, service.oneshot(keyed("b"))).await;
    let late = claimed.expect("the claim was waited for after the end of its lease").unwrap();
    assert_eq!(late.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(seen.take(), ["completed", "unavailable"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_long_in_coming_is_renewed_at_once() {
    let (store, seen) = (Store::new(&clock()), Seen::default());
    *store.claim_takes.lock().unwrap() = SECOND * 19 / 10;
    store.renewals.hang.store(true, Ordering::SeqCst);
    let renewals = Arc::clone(&store.renewals);
    let inner = tower::service_fn(move |_: Request<_>| {
        let renewals = Arc::clone(&renewals);
        async move {
            timeout(SECOND / 10, renewals.begun.notified()).await.expect("two thirds of the lease are gone");
            Ok::<_, Infallible>(Response::new(Full::from("done")))
        }
    });
    let service = with_lease(3 * SECOND, &store, &seen).layer(inner);
    assert_eq!(service.oneshot(keyed("a")).await.unwrap().status(), StatusCode::OK);
}

/// Once such a request was answered with an id under which the log had nothing, and no event told of it.
#[tokio::test]
async fn a_store_that_panics_is_an_internal_error_and_is_told() {
    let (store, seen) = (Store::new(&clock()), Seen::default());
    let inner =
        tower::service_fn(|_: Request<_>| async { Ok::<_, Infallible>(Response::new(Full::from(""))) });
    let service = layer(&store, &seen).layer(inner);
    store.claims_panic.store(true, Ordering::SeqCst);
    let failed = service.clone().oneshot(keyed("a")).await.unwrap();
    assert_eq!(failed.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(failed.headers().contains_key("x-correlation-id"));
    assert_eq!(seen.take(), ["unrecorded"]);
    store.claims_panic.store(false, Ordering::SeqCst);
    assert_eq!(service.oneshot(keyed("a")).await.unwrap().status(), StatusCode::OK);
}

/// Once a panic freed the key even where the route said that its work must not be started twice, and so did an error of
/// the service, which may be an upstream that broke off half-way.
#[tokio::test]
async fn work_that_must_not_start_twice_stays_blocked_after_a_run_that_broke_off() {
    for how in ["panic", "error", "body"] {
        let (clock, seen) = (clock(), Seen::default());
        let store = Store::new(&clock);
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&runs);
        let inner = tower::service_fn(move |_: Request<_>| {
            counter.fetch_add(1, Ordering::SeqCst);
            async move {
                let broken = || std::io::Error::other("as asked");
                match how {
                    "panic" => panic!("as asked"),
                    "error" => Err(broken()),
                    _ => {
                        let broken: Result<Frame<Bytes>, _> = Err(broken());
                        Ok(Response::new(StreamBody::new(futures::stream::iter([broken]))))
                    }
                }
            }
        });
        let terms = Terms { on_lapse: OnLapse::StayBlocked, ..Terms::default() };
        let policy = {
            let terms = terms.clone();
            move |_: &Parts| Some(Idempotent::by_header("tenant").terms(terms.clone()).wait(Duration::ZERO))
        };
        let layer = IdempotencyLayer::new(store, policy).time(time(&clock)).observer(seen.clone());
        let service = layer.layer(inner);
        match service.clone().oneshot(keyed("a")).await {
            Ok(failed) => assert_eq!(failed.status(), StatusCode::INTERNAL_SERVER_ERROR, "{how}"),
            Err(error) => assert_eq!((how, error.to_string().as_str()), ("error", "as asked")),
        }
        clock.advance(terms.lease);
        let again = service.oneshot(keyed("a")).await.unwrap();
        let body = again.into_body().collect().await.unwrap().to_bytes();
        assert!(String::from_utf8_lossy(&body).contains("idempotency_blocked"), "{how}: {body:?}");
        assert_eq!(
            (runs.load(Ordering::SeqCst), seen.take()),
            (1, vec!["unrecorded".into(), "blocked".into()])
        );
    }
}
