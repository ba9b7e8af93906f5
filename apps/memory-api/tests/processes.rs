//! Several programs on one store share limits, replays and jobs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod program;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use http::Method;
use program::{Place, Program, ROOMY, ask, demand_exactly, ingest};

/// Three per cent of an hour's limit of 50 come back in 108 s, the time limit of a test: the limit is exact within it.
const LIMIT: [(&str, &str); 3] =
    [("MEM_RATE_LIMIT_INGEST", "50"), ("MEM_RATE_LIMIT_QUERY", "50"), ("MEM_RATE_LIMIT_BURST", "1000000")];

async fn two(place: &Place, set: &[(&str, &str)]) -> [Program; 2] {
    let (one, other) = tokio::join!(Program::start(place, set), Program::start(place, set));
    [one, other]
}

async fn limits_hold_across(place: Place) {
    let programs = two(&place, &LIMIT).await;
    let queries = (0..200).map(|i| {
        let address = programs[i % 2].address;
        tokio::spawn(async move { ask(address, Method::GET, "/memory/query", String::new()).await.unwrap() })
    });
    let mut statuses = BTreeMap::<u16, usize>::new();
    for reply in join_all(queries).await {
        let reply = reply.unwrap();
        *statuses.entry(reply.status).or_default() += 1;
        if reply.status == 429 {
            let wait: u64 = reply.headers["retry-after"].to_str().unwrap().parse().unwrap();
            assert!((1..=72).contains(&wait), "a token takes 72 s, and not {wait}");
        }
    }
    assert_eq!(statuses, BTreeMap::from([(200, 50), (429, 150)]));

    // The hour of another endpoint is another, and as much shared.
    let mut granted = Vec::new();
    for i in 0..60 {
        let reply = ingest(programs[i % 2].address, &format!("id-{i}")).await.unwrap();
        if reply.status == 202 {
            granted.push((format!("id-{i}"), reply.body));
        }
    }
    assert_eq!(granted.len(), 50);
    demand_exactly(&place, &granted.into_iter().collect()).await;
}

async fn replays_hold_across(place: Place) {
    let programs = two(&place, &ROOMY).await;
    let mut answers = BTreeMap::new();
    for i in 0..30 {
        let id = format!("id-{i}");
        let both = (0..8).map(|n| {
            let (id, address) = (id.clone(), programs[n % 2].address);
            tokio::spawn(async move { ingest(address, &id).await.unwrap() })
        });
        let replies: Vec<_> = join_all(both).await.into_iter().map(Result::unwrap).collect();
        assert!(
            replies.iter().all(|reply| reply.status == 202 && reply.body == replies[0].body),
            "{replies:?}"
        );
        let first = replies.iter().filter(|reply| !reply.headers.contains_key("idempotent-replayed")).count();
        assert_eq!(first, 1, "one ran and the others replayed it");
        answers.insert(id, replies[0].body.clone());
    }
    demand_exactly(&place, &answers).await;
}

#[tokio::test]
async fn limits_hold_across_two_processes_on_postgres() {
    limits_hold_across(Place::postgres()).await;
}

#[tokio::test]
async fn limits_hold_across_two_processes_on_sqlite() {
    limits_hold_across(Place::sqlite()).await;
}

#[tokio::test]
async fn replays_hold_across_two_processes_on_postgres() {
    replays_hold_across(Place::postgres()).await;
}

#[tokio::test]
async fn replays_hold_across_two_processes_on_sqlite() {
    replays_hold_across(Place::sqlite()).await;
}

/// What one accepted and did not live to index, another does.
#[tokio::test]
async fn jobs_outlive_the_processes_that_accepted_them() {
    let place = Place::postgres();
    let [one, other] = two(&place, &ROOMY).await;
    let mut answers = BTreeMap::new();
    for i in 0..40 {
        let id = format!("id-{i}");
        let reply = ingest(one.address, &id).await.unwrap();
        assert_eq!(reply.status, 202);
        answers.insert(id, reply.body);
    }
    one.kill_after(Duration::ZERO).await;
    demand_exactly(&place, &answers).await;
    other.stop().await;
}

/// SIGTERM under load: what was taken in is answered, and then the program ends well.
#[tokio::test]
async fn a_stop_breaks_no_request_of_several_processes() {
    for place in [Place::sqlite(), Place::postgres()] {
        let [one, other] = two(&place, &ROOMY).await;
        let address = one.address;
        let clients: Vec<_> = (0..8)
            .map(|client| {
                tokio::spawn(async move {
                    let mut answers = BTreeMap::new();
                    for i in 0.. {
                        let id = format!("client-{client}-batch-{i}");
                        // Refused connections tell that it stopped; an accepted one is answered whole.
                        if tokio::net::TcpStream::connect(address).await.is_err() {
                            break;
                        }
                        match ingest(address, &id).await {
                            Ok(reply) => {
                                assert_eq!(reply.status, 202, "{reply:?}");
                                answers.insert(id, reply.body);
                            }
                            Err(_) => break,
                        }
                    }
                    answers
                })
            })
            .collect();
        assert!(
            tokio::time::timeout(Duration::from_millis(500), std::future::pending::<()>()).await.is_err()
        );
        one.stop().await;
        let mut answers = BTreeMap::new();
        for client in clients {
            answers.append(&mut client.await.unwrap());
        }
        assert!(!answers.is_empty());
        // A connection that was queued and not yet accepted may have been closed: its batch was not taken in.
        let jobs = place.jobs();
        assert!(
            jobs.len() >= answers.len() && jobs.len() <= answers.len() + 8,
            "{} {}",
            jobs.len(),
            answers.len()
        );
        for id in jobs.into_iter().map(|(id, ..)| id).collect::<Vec<_>>() {
            let again = ingest(other.address, &id).await.unwrap();
            let first = answers.entry(id).or_insert_with(|| again.body.clone());
            assert_eq!(*first, again.body);
        }
        demand_exactly(&place, &answers).await;
    }
}
