//! What becomes of the record of a run that ended while the store was away.
//!
//! Once it was tried to settle it a single time, so that a store that was away for a second when a request
//! was answered let its lease lapse, and a retry ran again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use admit::ManualClock;
use admit::idempotency::Terms;
use admit_tower::{IdempotencyLayer, IdempotencyPolicy, Idempotent};
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use support::{Seen, Store, clock, time};
use tokio::time::timeout;
use tower::{Layer, ServiceExt};

const KEY: &str = "idempotency-key";
const LEASE: Duration = Duration::from_secs(60);
const STORE_TIME_LIMIT: Duration = Duration::from_secs(5);

struct Setup {
    clock: ManualClock,
    store: Store,
    seen: Seen,
    runs: Arc<AtomicUsize>,
}

impl Setup {
    fn new() -> Self {
        let clock = clock();
        Self { store: Store::new(&clock), clock, seen: Seen::default(), runs: Arc::default() }
    }

    fn layer(&self) -> IdempotencyLayer<Store, impl IdempotencyPolicy + use<>> {
        let policy = |_: &Parts| {
            let terms = Terms { lease: LEASE, ..Terms::default() };
            Some(Idempotent::by_header("tenant").terms(terms).wait(Duration::ZERO))
        };
        IdempotencyLayer::new(self.store.clone(), policy).time(time(&self.clock)).observer(self.seen.clone())
    }

    /// A run that is answered with this status, at the end of which `then` happens to the store.
    async fn run(
        &self,
        layer: &IdempotencyLayer<Store, impl IdempotencyPolicy>,
        status: StatusCode,
        then: impl Fn(&Store) + Clone + Send + 'static,
    ) -> (StatusCode, String) {
        let (store, runs) = (self.store.clone(), Arc::clone(&self.runs));
        let inner = tower::service_fn(move |_: Request<_>| {
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            then(&store);
            let mut response = Response::new(Full::new(Bytes::from(format!("run {run}"))));
            *response.status_mut() = status;
            async move { Ok::<_, Infallible>(response) }
        });
        let request = Request::post("/jobs").header(KEY, "a").body(Empty::<Bytes>::new()).unwrap();
        let response = layer.layer(inner).oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

fn goes_down(store: &Store) {
    store.set_down(true);
}

fn loses_the_answer(store: &Store) {
    store.endings_lost.store(true, Ordering::SeqCst);
}

async fn wait(time: Duration) {
    let _ = timeout(time, std::future::pending::<()>()).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ended_while_the_store_was_away_is_recorded_when_it_is_back_and_does_not_run_again() {
    let setup = Setup::new();
    let layer = setup.layer();
    let first = setup.run(&layer, StatusCode::OK, goes_down).await;
    assert_eq!(first, (StatusCode::OK, "run 1".into()), "an answer that is there waits for no store");
    wait(LEASE / 2).await;
    assert!(setup.seen.take().is_empty());
    setup.store.set_down(false);
    layer.idle().await;
    assert_eq!(setup.seen.take(), ["completed"]);
    setup.clock.advance(LEASE);
    assert_eq!(setup.run(&layer, StatusCode::OK, |_| ()).await, (StatusCode::OK, "run 1".into()));
    assert_eq!((setup.runs(), setup.seen.take()), (1, vec!["replayed".into()]));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_to_be_freed_while_the_store_was_away_is_free_when_it_is_back() {
    let setup = Setup::new();
    let layer = setup.layer();
    setup.run(&layer, StatusCode::BAD_GATEWAY, goes_down).await;
    setup.store.set_down(false);
    layer.idle().await;
    assert_eq!(setup.run(&layer, StatusCode::OK, |_| ()).await.1, "run 2");
    assert_eq!(setup.seen.take(), ["released", "completed"]);
}

/// The second attempt then finds the ticket lost, which is no alarm.
#[tokio::test(start_paused = true)]
async fn a_record_that_was_written_without_an_answer_is_seen_to_be_there() {
    for (status, told) in [(StatusCode::OK, "completed"), (StatusCode::BAD_GATEWAY, "released")] {
        let setup = Setup::new();
        let layer = setup.layer();
        setup.run(&layer, status, loses_the_answer).await;
        layer.idle().await;
        assert_eq!(setup.seen.take(), [told]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_back_after_the_lease_has_lapsed_is_told_nothing_and_that_is_counted() {
    let setup = Setup::new();
    let layer = setup.layer();
    setup.run(&layer, StatusCode::OK, goes_down).await;
    setup.clock.advance(LEASE);
    setup.store.set_down(false);
    layer.idle().await;
    assert_eq!(setup.seen.take(), ["unrecorded"]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stays_away_is_given_up_when_the_lease_has_surely_lapsed() {
    let setup = Setup::new();
    let layer = setup.layer();
    setup.run(&layer, StatusCode::OK, goes_down).await;
    let bound = LEASE + STORE_TIME_LIMIT + Duration::from_secs(1);
    timeout(bound, layer.idle()).await.expect("a run that ended holds its place for ever");
    assert_eq!(setup.seen.take(), ["unrecorded"]);
}
