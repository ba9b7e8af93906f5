//! The idempotency layer over real HTTP: one run for each key, and the same answer for all who ask.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, OnLapse, Outcome, Response as Stored, Terms};
use admit::{IdempotencyStore, Now};
use admit_tower::{Idempotent, IfMissing, JsonPointer, ReadAhead, Run, Runs};
use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use axum::routing::post;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use support::service::{Setup, by_header, keyed, record, told};
use support::{Server, text};

#[tokio::test]
async fn a_retry_gets_the_first_response_byte_for_byte() {
    let setup = Setup::new();
    let server = setup.serve(setup.layer(by_header())).await;
    let first = server.send(keyed("\"a\""), "payload").await;
    assert_eq!((first.status(), text(&first)), (StatusCode::ACCEPTED, "job 1, 7 bytes"));
    assert!(
        first.headers().contains_key("set-cookie") && !first.headers().contains_key("idempotent-replayed")
    );

    let again = server.send(keyed("a"), "payload").await;
    assert_eq!((again.status(), again.body()), (first.status(), first.body()));
    for kept in ["location", "content-type", "content-length"] {
        assert_eq!(again.headers()[kept], first.headers()[kept]);
    }
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert!(!again.headers().contains_key("set-cookie"));
    assert_eq!(text(&server.send(keyed("b"), "payload").await), "job 2, 7 bytes");
    assert_eq!(setup.seen.take(), ["completed", "replayed", "completed"]);

    setup.clock.advance(Duration::from_secs(86_400));
    assert_eq!(text(&server.send(keyed("a"), "payload").await), "job 3, 7 bytes");
}

#[tokio::test]
async fn a_request_that_is_not_idempotent_runs_each_time() {
    let setup = Setup::new();
    let server = setup.serve(setup.layer(by_header())).await;
    for run in ["job 1, 0 bytes", "job 2, 0 bytes"] {
        let request = Request::post("/free").header("idempotency-key", "a");
        assert_eq!(text(&server.send(request, "").await), run);
    }
    assert!(setup.seen.take().is_empty());
}

#[tokio::test]
async fn of_many_at_once_one_runs_and_the_rest_replay() {
    for setup in Setup::both() {
        of_many_at_once(setup).await;
    }
}

async fn of_many_at_once(setup: Setup) {
    let server = Arc::new(setup.serve(setup.held(by_header(), "100/hour")).await);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let server = Arc::clone(&server);
        tasks.spawn(async move { server.send(keyed("a").header("x-hold", "1"), "").await });
    }
    setup.work.started.notified().await;
    setup.work.go.0.add_permits(1);
    let mut replayed = 0;
    while let Some(response) = tasks.join_next().await {
        let response = response.unwrap();
        assert_eq!((response.status(), text(&response)), (StatusCode::ACCEPTED, "job 1, 0 bytes"));
        replayed += usize::from(response.headers().contains_key("idempotent-replayed"));
    }
    assert_eq!((setup.runs(), replayed), (1, 19));
    // One paid for a run; each paid for a request; whoever paid for a run and did not run got it back.
    let next = server.send(keyed("b"), "").await;
    assert_eq!(next.headers()["ratelimit"], r#""ingest";r=98;t=72, "burst";r=979;t=2"#);
}

#[tokio::test]
async fn a_client_that_hangs_up_undoes_nothing() {
    let setup = Setup::new();
    let layer = setup.layer(by_header());
    let server = Arc::new(setup.serve(layer.clone()).await);
    let hung_up = {
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.send(keyed("a").header("x-hold", "1"), "").await })
    };
    setup.work.started.notified().await;
    hung_up.abort();
    assert!(hung_up.await.unwrap_err().is_cancelled());
    drop(server); // Its connections end with it.

    setup.work.go.0.add_permits(1);
    layer.idle().await;
    assert_eq!(setup.seen.take(), ["completed"]);
    let server = setup.serve(layer).await;
    let again = server.send(keyed("a"), "").await;
    assert_eq!((text(&again), setup.runs()), ("job 1, 0 bytes", 1));
}

#[tokio::test]
async fn what_is_wrong_with_a_key_is_told() {
    let setup = Setup::new();
    let server = setup.serve(setup.layer(by_header())).await;
    let told_of = |response| told(&response);
    assert_eq!(
        told_of(server.send(Request::post("/jobs"), "").await),
        (400, "idempotency_key_missing".to_owned())
    );
    let huge = "x".repeat(10_000);
    for wrong in ["a b", "\"open", huge.as_str()] {
        assert_eq!(
            told_of(server.send(keyed(wrong), "").await),
            (400, "idempotency_key_malformed".to_owned())
        );
    }
    server.send(keyed("a"), "one").await;
    assert_eq!(told_of(server.send(keyed("a"), "two").await), (422, "idempotency_key_reused".to_owned()));
    assert_eq!(setup.runs(), 1);
}

#[tokio::test]
async fn a_response_after_which_a_retry_is_meant_to_run_is_not_recorded() {
    let setup = Setup::new();
    let server = setup.serve(setup.layer(by_header())).await;
    for status in ["500", "503", "429", "408", "401", "403"] {
        let failed = server.send(keyed("a").header("x-come-to", status), "").await;
        assert_eq!(failed.status().as_str(), status);
    }
    let failed = server.send(keyed("a").header("x-come-to", "panic"), "").await;
    assert_eq!(told(&failed), (500, "internal".to_owned()));
    assert!(text(&failed).contains(failed.headers()["x-correlation-id"].to_str().unwrap()));
    assert_eq!(setup.seen.take(), ["released"; 7]);
    assert_eq!(text(&server.send(keyed("a"), "").await), "job 8, 0 bytes");
    assert_eq!(server.send(keyed("b").header("x-come-to", "404"), "").await.status(), StatusCode::NOT_FOUND);
    let again = server.send(keyed("b"), "").await;
    assert_eq!((again.status(), setup.runs()), (StatusCode::NOT_FOUND, 9));
}

#[tokio::test]
async fn a_response_too_large_to_keep_is_given_once() {
    let setup = Setup::new();
    let server = setup.serve(setup.layer(by_header()).max_recorded_body(1_000)).await;
    let first = server.send(keyed("a").header("x-come-to", "large"), "").await;
    assert_eq!((first.status(), first.body().len()), (StatusCode::OK, 100_000));
    let again = server.send(keyed("a"), "").await;
    assert_eq!(told(&again), (409, "idempotency_response_not_kept".to_owned()));
    assert!(
        !again.headers().contains_key("retry-after") && text(&again).contains(r#""original_status":200"#)
    );
    assert_eq!(setup.runs(), 1);
    assert_eq!(setup.seen.take(), ["tombstoned", "gone"]);
}

#[tokio::test]
async fn a_run_of_another_replica_is_waited_for_and_then_told() {
    let setup = Setup::new();
    let (terms, payload) = (Terms::default(), Fingerprint::of(""));
    let Claim::Run(ticket) = setup.store.claim(&record("a"), &payload, &terms, Now::Store).await.unwrap()
    else {
        panic!()
    };
    let at_once = |_: &Parts| Some(Idempotent::by_header("tenant").wait(Duration::from_millis(1)));
    let impatient = setup.serve(setup.layer(at_once)).await;
    let busy = impatient.send(keyed("a"), "").await;
    assert_eq!(told(&busy), (409, "idempotency_in_flight".to_owned()));
    assert_eq!(busy.headers()["retry-after"], "1");

    let server = setup.serve(setup.layer(by_header())).await;
    let stored = Stored { status: 201, headers: vec![], body: b"theirs".to_vec() };
    let (again, completed) = tokio::join!(server.send(keyed("a"), ""), async {
        setup.store.complete(&ticket, &Outcome::Response(stored), &terms, Now::Store).await
    });
    completed.unwrap();
    assert_eq!((again.status(), text(&again), setup.runs()), (StatusCode::CREATED, "theirs", 0));
}

#[tokio::test]
async fn a_run_that_died_is_run_again_or_stays_blocked_as_the_route_says() {
    for (on_lapse, error) in [(OnLapse::RunAgain, None), (OnLapse::StayBlocked, Some("idempotency_blocked"))]
    {
        let setup = Setup::new();
        let terms = Terms { on_lapse, ..Terms::default() };
        let policy = {
            let terms = terms.clone();
            move |_: &Parts| Some(Idempotent::by_header("tenant").terms(terms.clone()))
        };
        let server = setup.serve(setup.layer(policy)).await;
        let dead = setup.store.claim(&record("a"), &Fingerprint::of(""), &terms, Now::Store).await.unwrap();
        assert!(matches!(dead, Claim::Run(_)));
        setup.clock.advance(terms.lease);
        let response = server.send(keyed("a"), "").await;
        match error {
            None => assert_eq!(response.status(), StatusCode::ACCEPTED),
            Some(error) => {
                assert_eq!(told(&response), (409, error.to_owned()));
                assert!(!response.headers().contains_key("retry-after"));
            }
        }
    }
}

#[tokio::test]
async fn a_store_that_fails_before_the_run_stops_it_and_one_that_fails_after_it_does_not_change_the_answer() {
    let setup = Setup::new();
    let at_once = |_: &Parts| Some(Idempotent::by_header("tenant").wait(Duration::ZERO));
    let server = Arc::new(setup.serve(setup.layer(at_once)).await);
    setup.store.set_down(true);
    let failed = server.send(keyed("a"), "").await;
    assert_eq!(told(&failed), (503, "unavailable".to_owned()));
    assert!(!failed.headers().contains_key("retry-after") && !text(&failed).contains("fire"));
    assert_eq!(setup.runs(), 0);

    setup.store.set_down(false);
    let request = {
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.send(keyed("a").header("x-hold", "1"), "").await })
    };
    setup.work.started.notified().await;
    setup.store.set_down(true);
    setup.work.go.0.add_permits(1);
    assert_eq!(text(&request.await.unwrap()), "job 1, 0 bytes");
    assert_eq!(setup.seen.take(), ["unavailable"], "its record is not settled yet");
}

#[tokio::test(start_paused = true)]
async fn a_long_run_keeps_its_lease() {
    let setup = Setup::new();
    let server = Arc::new(setup.serve(setup.layer(by_header())).await);
    let request = {
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.send(keyed("a").header("x-hold", "1"), "").await })
    };
    setup.work.started.notified().await;
    for _ in 0..10 {
        setup.clock.advance(Duration::from_secs(25)); // The lease is 60 s, and is renewed every 20.
        tokio::time::advance(Duration::from_secs(25)).await;
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    setup.work.go.0.add_permits(1);
    assert_eq!(request.await.unwrap().status(), StatusCode::ACCEPTED);
    assert_eq!(setup.seen.take(), ["completed"]);
}

#[tokio::test]
async fn a_response_with_trailers_is_given_whole_and_not_replayed_without_them() {
    use tower::{Layer, ServiceExt};

    let setup = Setup::new();
    let inner = tower::service_fn(|_: Request<_>| async {
        let trailers = HeaderMap::from_iter([(http::header::ETAG, http::HeaderValue::from_static("x"))]);
        let frames = [Frame::data(Bytes::from_static(b"data")), Frame::trailers(trailers)];
        let body = StreamBody::new(futures::stream::iter(frames.map(Ok::<_, std::convert::Infallible>)));
        Ok::<_, std::convert::Infallible>(http::Response::new(body))
    });
    let service = setup.layer(by_header()).layer(inner);
    let send = || service.clone().oneshot(keyed("a").body(http_body_util::Empty::<Bytes>::new()).unwrap());
    let first = send().await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(first.trailers().unwrap()["etag"], "x");
    assert_eq!(first.to_bytes(), "data");
    assert_eq!(send().await.unwrap().status(), StatusCode::CONFLICT);
    assert_eq!(setup.seen.take(), ["tombstoned", "gone"]);
}

#[tokio::test]
async fn as_many_run_as_may() {
    let setup = Setup::new();
    let layer = setup.layer(by_header()).max_runs(1);
    let server = Arc::new(setup.serve(layer).await);
    let request = {
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.send(keyed("a").header("x-hold", "1"), "").await })
    };
    setup.work.started.notified().await;
    assert_eq!(told(&server.send(keyed("b"), "").await), (503, "overloaded".to_owned()));
    setup.work.go.0.add_permits(1);
    request.await.unwrap();
    assert_eq!(server.send(keyed("b"), "").await.status(), StatusCode::ACCEPTED);
}

/// A service that exchanges its layers while it runs had the bound once for each of them, and had to wait for layers that it
/// no longer knew.
#[tokio::test]
async fn layers_that_share_their_runs_have_one_bound_and_end_together() {
    let (setup, runs) = (Setup::new(), Runs::new(1));
    let before = Arc::new(setup.serve(setup.layer(by_header()).runs(runs.clone())).await);
    let after = setup.serve(setup.layer(by_header()).runs(runs.clone())).await;
    let request = {
        let before = Arc::clone(&before);
        tokio::spawn(async move { before.send(keyed("a").header("x-hold", "1"), "").await })
    };
    setup.work.started.notified().await;
    assert_eq!(told(&after.send(keyed("b"), "").await), (503, "overloaded".to_owned()));
    assert!(futures::FutureExt::now_or_never(runs.idle()).is_none());
    setup.work.go.0.add_permits(1);
    request.await.unwrap();
    runs.idle().await;
    assert_eq!(after.send(keyed("b"), "").await.status(), StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_body_without_room_is_told_so_and_costs_nothing() {
    let setup = Setup::new();
    let server = setup.serve(setup.layer(by_header()).read_ahead(ReadAhead::new(4))).await;
    assert_eq!(told(&server.send(keyed("a"), "12345").await), (503, "overloaded".to_owned()));
    assert_eq!(server.send(keyed("a"), "1234").await.status(), StatusCode::ACCEPTED);
    assert_eq!(setup.seen.take(), ["overloaded", "completed"]);
}

#[tokio::test]
async fn a_chunked_body_with_trailers_comes_through_whole_and_a_long_one_is_refused() {
    let setup = Setup::new();
    let server = setup.serve(setup.layer(by_header()).max_request_body(10)).await;
    let chunked = |key: &str, chunks: &[&'static str]| {
        let mut frames: Vec<Result<_, std::io::Error>> =
            chunks.iter().map(|chunk| Ok(Frame::data(Bytes::from_static(chunk.as_bytes())))).collect();
        frames.push(Ok(Frame::trailers(HeaderMap::from_iter([(
            http::HeaderName::from_static("x-sum"),
            http::HeaderValue::from_static("1"),
        )]))));
        let stream = StreamBody::new(futures::stream::iter(frames)).boxed();
        keyed(key).header("trailer", "x-sum").body(stream).unwrap()
    };
    let first = server.send_body(chunked("a", &["123", "", "4567890"])).await;
    assert_eq!(text(&first), "job 1, 10 bytes");
    // The same bytes in other chunks are the same payload.
    let again = server.send_body(chunked("a", &["1234567", "890"])).await;
    assert_eq!((text(&again), setup.runs()), ("job 1, 10 bytes", 1));
    let long = server.send_body(chunked("b", &["1234567", "8901"])).await;
    assert_eq!(told(&long), (413, "body_too_large".to_owned()));
    assert_eq!(told(&server.send(keyed("b"), "12345678901").await), (413, "body_too_large".to_owned()));
}

#[tokio::test]
async fn a_key_made_of_the_content_is_told_and_means_the_same_when_sent() {
    let setup = Setup::new();
    let policy = |_: &Parts| {
        Some(
            Idempotent::by_body("tenant", JsonPointer::from_static("/ingest_id"))
                .if_missing(IfMissing::ContentKey),
        )
    };
    let server = setup.serve(setup.layer(policy)).await;
    let post = |body: String| server.send(Request::post("/jobs"), body);
    let first = post(r#"{"b":1,"a":"x"}"#.to_owned()).await;
    let key = first.headers()["idempotency-key"].to_str().unwrap().trim_matches('"').to_owned();
    assert!(key.starts_with("jcs1-sha256:") && key.len() == 12 + 64);
    let again = post(r#"{ "a": "x", "b": 1 }"#.to_owned()).await;
    assert_eq!(
        (again.body(), &again.headers()["idempotency-key"]),
        (first.body(), &first.headers()["idempotency-key"])
    );
    let sent = post(format!(r#"{{"ingest_id":"{key}","a":"x","b":1}}"#)).await;
    assert_eq!((sent.body(), setup.runs()), (first.body(), 1));
    assert_eq!(told(&post(format!(r#"{{"ingest_id":"{key}","a":"y"}}"#)).await).0, 422);
    let wrong = post(r#"{"a":1,"a":2}"#.to_owned()).await;
    assert_eq!(told(&wrong).0, 400);
}

#[tokio::test]
async fn a_handler_records_its_response_itself() {
    let setup = Setup::new();
    let store = setup.store.clone();
    let handler = move |Extension(run): Extension<Run>| async move {
        let mut response = http::Response::new(Bytes::from(format!("key {}", run.key())));
        *response.status_mut() = StatusCode::CREATED;
        let answer = run.answer(response).unwrap();
        // In the handler's transaction, with what it has to write.
        store.complete(answer.ticket(), answer.outcome(), answer.terms(), answer.now()).await.unwrap();
        answer.into_response::<Body>()
    };
    let router = Router::new().route("/jobs", post(handler)).layer(setup.layer(by_header()));
    let server = Server::start(router).await;
    let first = server.send(keyed("a"), "").await;
    assert_eq!((first.status(), text(&first)), (StatusCode::CREATED, "key a"));
    let again = server.send(keyed("a"), "").await;
    assert_eq!((again.status(), text(&again)), (StatusCode::CREATED, "key a"));
    assert_eq!(setup.seen.take(), ["completed", "replayed"]);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_not_waited_for_for_ever() {
    use tower::{Layer, ServiceExt};

    let setup = Setup::new();
    let inner = tower::service_fn(|_: Request<_>| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(http_body_util::Empty::<Bytes>::new()))
    });
    let stalled = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, std::io::Error>>());
    let response =
        setup.layer(by_header()).layer(inner).oneshot(keyed("a").body(stalled).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
}
