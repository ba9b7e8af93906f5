//! Budgets in the store of the records: one call for a whole admission, and the same answers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use admit::Key;
use admit_tower::{
    BudgetLayer, IdempotencyLayer, IdempotencyPolicy, Idempotent, JsonPointer, Limiter, Quota,
};
use bytes::Bytes;
use http::request::Parts;
use http::{Request, StatusCode};
use http_body_util::Empty;
use support::service::{Setup, answers, by_header, keyed, told};
use support::{INGEST, Store, time};
use tower::{Layer, ServiceExt};

fn in_one_store() -> Setup {
    let [_, setup] = Setup::both();
    setup
}

fn count(of: &AtomicUsize) -> usize {
    of.swap(0, Ordering::SeqCst)
}

/// Admissions, then looks, takes and claims. The store of the tests makes three calls of an admission.
fn calls(setup: &Setup) -> [usize; 4] {
    let store = &setup.store;
    [&store.admissions, &store.looks, &store.takes, &store.claims].map(|of| count(of))
}

/// Once a request was looked up, charged and claimed by a call each.
#[tokio::test]
async fn a_request_is_admitted_by_one_call() {
    let setup = in_one_store();
    let server = setup.serve(setup.held(by_header(), "100/hour")).await;
    for body in ["", "a short body"] {
        assert_eq!(server.send(keyed(&body.len().to_string()), body).await.status(), StatusCode::ACCEPTED);
        assert_eq!(calls(&setup), [1, 1, 1, 1], "by itself");
    }
    let pointer = JsonPointer::from_static("/id");
    let by_body = move |_: &Parts| Some(Idempotent::by_body("tenant", pointer.clone()));
    let server = setup.serve(setup.held(by_body, "100/hour")).await;
    let ran = server.send(Request::post("/jobs"), r#"{"id":"a"}"#).await;
    assert_eq!(ran.headers()["ratelimit"], r#""ingest";r=97;t=108, "burst";r=997;t=1"#);
    assert_eq!(calls(&setup), [1, 1, 1, 1]);
}

/// Without budgets the claim tells all there is to know.
#[tokio::test]
async fn a_request_that_pays_nothing_is_claimed_by_one_call() {
    let setup = Setup::new();
    let server = setup.serve(setup.layer(by_header())).await;
    assert_eq!(server.send(keyed("a"), "").await.status(), StatusCode::ACCEPTED);
    assert_eq!(server.send(keyed("a"), "").await.headers()["idempotent-replayed"], "true");
    assert_eq!(calls(&setup), [0, 0, 0, 2]);
}

/// Of a long body it is found out first whether it may be sent.
#[tokio::test]
async fn a_request_with_a_long_body_pays_before_it_is_read() {
    let setup = in_one_store();
    let server = setup.serve(setup.held(by_header(), "1/hour")).await;
    let long = vec![b'x'; 100_000];
    assert_eq!(server.send(keyed("a"), long.clone()).await.status(), StatusCode::ACCEPTED);
    assert_eq!(calls(&setup), [0, 1, 1, 1]);
    assert_eq!(server.send(keyed("b"), long.clone()).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(calls(&setup), [0, 1, 1, 0]);
    assert_eq!(server.send(keyed("a"), long).await.headers()["idempotent-replayed"], "true");
}

/// Budgets that were made with another store were refunded there, and what was admitted in this one was debited here.
#[tokio::test]
async fn the_buckets_are_those_of_the_layers_store() {
    let (setup, other) = (in_one_store(), in_one_store());
    let layer = setup.layer(by_header()).budgets_in_store(other.budgets("100/hour"));
    let server = setup.serve(layer).await;
    let long = vec![b'x'; 100_000];
    for (body, left) in [(Vec::new(), r#""ingest";r=99;"#), (long, r#""ingest";r=98;"#)] {
        let ran = server.send(keyed(&body.len().to_string()), body).await;
        assert!(ran.headers()["ratelimit"].to_str().unwrap().starts_with(left));
    }
    assert_eq!((calls(&setup), calls(&other)), ([1, 2, 2, 2], [0; 4]));
}

/// Where as many run as may, who can be replayed still is.
#[tokio::test]
async fn a_replay_needs_no_place_among_the_runs() {
    let setup = in_one_store();
    let server = setup.serve(setup.held(by_header(), "100/hour").max_runs(1)).await;
    server.send(keyed("a"), "").await;
    let holding = server.send(keyed("b").header("x-hold", "1"), "");
    let others = async {
        setup.work.started.notified().await; // That of the first.
        setup.work.started.notified().await;
        let replayed = server.send(keyed("a"), "").await;
        assert_eq!(replayed.headers()["idempotent-replayed"], "true");
        assert_eq!(told(&server.send(keyed("c"), "").await), (503, "overloaded".to_owned()));
        setup.work.go.0.add_permits(1);
    };
    let (held, ()) = tokio::join!(holding, others);
    assert_eq!(held.headers()["ratelimit"], r#""ingest";r=98;t=72, "burst";r=998;t=1"#);
}

/// The same with one budget, which may be such that requests run without.
fn with_one_budget(
    setup: &Setup,
    fails_open: bool,
) -> IdempotencyLayer<Store, impl IdempotencyPolicy + use<>> {
    let limiter = Limiter::new(setup.store.clone()).time(time(&setup.clock)).observer(setup.seen.clone());
    let budgets = BudgetLayer::new(limiter, move |_: &Parts| {
        let quota = Quota::new(INGEST, Key::of("caller"), "9/hour".parse().unwrap(), "hourly");
        vec![if fails_open { quota.fail_open() } else { quota }]
    });
    setup.layer(by_header()).budgets_in_store(budgets)
}

/// A budget that cannot be evaluated stops the request, unless it may go without: then the key is claimed all the same. Nothing
/// told of the record that could not be asked either.
#[tokio::test]
async fn a_request_runs_uncharged_where_its_budgets_say_so() {
    for (fails_open, status) in [(false, StatusCode::SERVICE_UNAVAILABLE), (true, StatusCode::ACCEPTED)] {
        let setup = in_one_store();
        let server = setup.serve(with_one_budget(&setup, fails_open)).await;
        setup.store.takes_fail.store(true, Ordering::SeqCst);
        let first = server.send(keyed("a"), "").await;
        assert_eq!((first.status(), first.headers().contains_key("ratelimit")), (status, false));
        let again = server.send(keyed("a"), "").await;
        assert_eq!(
            (again.status(), again.headers().contains_key("idempotent-replayed")),
            (status, fails_open)
        );
        let expected = match fails_open {
            true => ["FailedOpen(Scope(ingest))", "completed", "replayed"].as_slice(),
            false => &["unavailable", "Unavailable(Scope(ingest))"].repeat(2),
        };
        assert_eq!(setup.seen.take(), expected);
    }
}

/// It was told and counted as run uncharged before its key was claimed, which failed too, so that it did not run. After that the
/// outage of the budgets was not told at all.
#[tokio::test]
async fn what_cannot_be_claimed_is_not_told_to_run_uncharged() {
    let setup = in_one_store();
    let server = setup.serve(with_one_budget(&setup, true)).await;
    setup.store.takes_fail.store(true, Ordering::SeqCst);
    setup.store.claims_fail.store(true, Ordering::SeqCst);
    assert_eq!(server.send(keyed("a"), "").await.status(), StatusCode::SERVICE_UNAVAILABLE);
    let both = ["unavailable", "Unavailable(Scope(ingest))"].map(str::to_owned);
    assert_eq!((setup.seen.take(), setup.runs()), (both.to_vec(), 0));
}

/// Two equal limits were on the way of one answer, and it was a matter of chance which of them ended first, and whether the budgets
/// were asked what then.
#[tokio::test(start_paused = true)]
async fn an_admission_that_takes_too_long_is_one_whose_budgets_could_not_be_evaluated() {
    for limit in [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(20)] {
        for (fails_open, status, told) in [
            (false, StatusCode::SERVICE_UNAVAILABLE, ["unavailable", "Unavailable(Scope(ingest))"]),
            (true, StatusCode::OK, ["FailedOpen(Scope(ingest))", "completed"]),
        ] {
            let setup = in_one_store();
            setup.store.takes_hang.store(true, Ordering::SeqCst);
            let service = with_one_budget(&setup, fails_open).store_time_limit(limit).layer(answers());
            let body = Empty::<Bytes>::new();
            let response = service.oneshot(keyed("a").body(body).unwrap()).await.unwrap();
            assert_eq!((response.status(), setup.seen.take()), (status, told.map(str::to_owned).to_vec()));
        }
    }
}

/// Leased budgets are spent in memory, apart from the records. When such an admission took too long it was dropped between take
/// and claim: nothing was given back, and nothing told of what was debited.
#[tokio::test(start_paused = true)]
async fn what_a_store_debits_apart_from_the_claim_is_given_back() {
    let setup = in_one_store();
    setup.store.one_by_one.store(true, Ordering::SeqCst);
    let layer = setup.held(by_header(), "2/hour").store_time_limit(Duration::from_secs(2));
    let service = layer.layer(answers());
    let send = |key| {
        let body = Empty::<Bytes>::new();
        service.clone().oneshot(keyed(key).body(body).unwrap())
    };
    *setup.store.claim_takes.lock().unwrap() = Duration::from_secs(3);
    for key in ["a", "b", "c"] {
        assert_eq!(send(key).await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(setup.seen.take(), ["unavailable"]);
    }
    *setup.store.claim_takes.lock().unwrap() = Duration::ZERO;
    assert_eq!(send("d").await.unwrap().headers()["ratelimit"], r#""ingest";r=1;t=1800, "burst";r=999;t=1"#);
    assert_eq!(calls(&setup), [0, 4, 4, 4]);
}
