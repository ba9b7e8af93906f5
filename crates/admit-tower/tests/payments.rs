//! What keyed requests pay: a run its budgets, a replay those that are marked for it, a refused request nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, Terms};
use admit::{IdempotencyStore, Now};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use support::service::{Setup, by_header, keyed, record};
use support::{BURST, text};

#[tokio::test]
async fn a_replay_spends_the_burst_alone_and_a_refused_request_leaves_no_record() {
    for setup in Setup::both() {
        let server = setup.serve(setup.held(by_header(), "2/hour")).await;
        let first = server.send(keyed("a"), "").await;
        assert_eq!(first.headers()["ratelimit"], r#""ingest";r=1;t=1800, "burst";r=999;t=1"#);
        let again = server.send(keyed("a"), "").await;
        assert_eq!(again.headers()["ratelimit"], r#""burst";r=998;t=1"#);
        // What is wrong is not free either.
        assert_eq!(server.send(keyed("a b"), "").await.status(), StatusCode::BAD_REQUEST);

        let refused = server.send(keyed("b"), "").await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "1800");
        let seen = setup.store.look(&record("b"), &Fingerprint::of(""), &Terms::default(), Now::Store).await;
        assert_eq!(seen.unwrap(), None);
        assert_eq!(server.send(keyed("a"), "").await.status(), StatusCode::ACCEPTED);
        assert_eq!(server.send(Request::post("/free"), "").await.status(), StatusCode::TOO_MANY_REQUESTS);
        setup.clock.advance(Duration::from_secs(1800));
        assert_eq!(text(&server.send(keyed("b"), "").await), "job 2, 0 bytes");
    }
}

#[tokio::test]
async fn who_waits_for_a_run_that_fails_runs_next_and_pays_once() {
    for setup in Setup::both() {
        let server = Arc::new(setup.serve(setup.held(by_header(), "100/hour")).await);
        let send = |come_to: &'static str| {
            let server = Arc::clone(&server);
            let request = keyed("a").header("x-hold", "1").header("x-come-to", come_to);
            tokio::spawn(async move { server.send(request, "").await })
        };
        let failing = send("500");
        setup.work.started.notified().await;
        let waiting = send("201");
        setup.spent(BURST, 2.0).await; // It has paid for a replay.
        setup.work.go.0.add_permits(2);
        assert_eq!(failing.await.unwrap().status(), StatusCode::INTERNAL_SERVER_ERROR);
        let ran = waiting.await.unwrap();
        assert_eq!(ran.status(), StatusCode::CREATED);
        // Once the fields told the last of two payments alone, so that the burst was missing.
        assert_eq!(ran.headers()["ratelimit"], r#""ingest";r=98;t=72, "burst";r=998;t=1"#);
        let next = server.send(keyed("b"), "").await;
        assert_eq!(next.headers()["ratelimit"], r#""ingest";r=97;t=108, "burst";r=997;t=1"#);
    }
}

#[tokio::test]
async fn who_paid_for_a_run_and_replays_is_not_told_of_what_it_got_back() {
    for setup in Setup::both() {
        let server = setup.serve(setup.held(by_header(), "100/hour")).await;
        server.send(keyed("a"), "").await;
        setup.store.blind.store(true, Ordering::SeqCst); // Both looked before the first claimed.
        let again = server.send(keyed("a"), "").await;
        assert_eq!(again.headers()["idempotent-replayed"], "true");
        assert_eq!(again.headers()["ratelimit"], r#""burst";r=998;t=1"#);
    }
}

/// Once every keyed body was read before its budgets were asked, so that requests that were to be refused took up memory,
/// each as much as a body may have.
#[tokio::test]
async fn a_refused_requests_body_is_not_read_where_the_key_is_in_the_header() {
    use tower::{Layer, ServiceExt};

    for setup in Setup::both() {
        let inner = tower::service_fn(|_: Request<_>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(http_body_util::Empty::<Bytes>::new()))
        });
        let service = setup.held(by_header(), "1/hour").layer(inner);
        let read = Arc::new(AtomicUsize::new(0));
        let send = |key: &str| {
            let read = Arc::clone(&read);
            let parts = ["pay", "load"].into_iter().map(move |part| {
                read.fetch_add(part.len(), Ordering::SeqCst);
                Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from_static(part.as_bytes())))
            });
            let body = StreamBody::new(futures::stream::iter(parts));
            service.clone().oneshot(keyed(key).body(body).unwrap())
        };
        assert_eq!(send("a").await.unwrap().status(), StatusCode::OK);
        assert_eq!(read.swap(0, Ordering::SeqCst), 7);
        let refused = send("b").await.unwrap();
        assert_eq!((refused.status(), read.load(Ordering::SeqCst)), (StatusCode::TOO_MANY_REQUESTS, 0));
        // One that can be replayed is read and replayed, although the hour is used up.
        let again = send("a").await.unwrap();
        assert_eq!((again.status(), read.load(Ordering::SeqCst)), (StatusCode::OK, 7));
        assert_eq!(again.headers()["idempotent-replayed"], "true");
    }
}

/// What is found out before the body is read is a guess: the record of a run that died looks taken, and is free.
#[tokio::test]
async fn what_was_paid_before_the_body_was_read_is_set_right_after() {
    for setup in Setup::both() {
        let server = setup.serve(setup.held(by_header(), "100/hour")).await;
        let terms = Terms::default();
        let dead = setup.store.claim(&record("a"), &Fingerprint::of(""), &terms, Now::Store).await.unwrap();
        assert!(matches!(dead, Claim::Run(_)));
        setup.clock.advance(terms.lease);
        let ran = server.send(keyed("a"), "").await;
        assert_eq!(ran.headers()["ratelimit"], r#""ingest";r=99;t=36, "burst";r=999;t=1"#);
        assert_eq!(server.send(keyed("a"), "other").await.status(), StatusCode::UNPROCESSABLE_ENTITY);
        let next = server.send(keyed("b"), "").await;
        assert_eq!(next.headers()["ratelimit"], r#""ingest";r=98;t=72, "burst";r=997;t=1"#);
    }
}
