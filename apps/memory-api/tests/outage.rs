//! PostgreSQL goes away and comes back, under load.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod program;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admit::{Clock, MonotonicClock};
use admit_testbed::{Postgres, Shutdown};
use bytes::Bytes;
use http::Method;
use program::{Place, Program, ask, demand_exactly, ingest};
use tokio::sync::watch;

/// Tokens a second of the burst, which is the budget that is watched here.
const BURST: u64 = 40;
const SET: [(&str, &str); 3] = [
    ("MEM_RATE_LIMIT_INGEST", "1000000000"),
    ("MEM_RATE_LIMIT_BURST", "40"),
    ("MEM_IDEMPOTENCY_LEASE_SECS", "1"),
];

#[derive(Default)]
struct Seen {
    granted: AtomicU64,
    refused: AtomicU64,
    unavailable: AtomicU64,
}

/// Sends ids one after the other until it is told to stop. While the store is away, nothing may be told as a refusal: a
/// bucket that cannot be asked reached no cap.
async fn client(
    number: usize,
    program: std::net::SocketAddr,
    seen: Arc<Seen>,
    away: watch::Receiver<bool>,
    stop: watch::Receiver<bool>,
) -> BTreeMap<String, Bytes> {
    let mut answers = BTreeMap::new();
    let mut pause = tokio::time::interval(Duration::from_millis(40));
    for i in 0.. {
        if *stop.borrow() {
            break;
        }
        let id = format!("client-{number}-batch-{i}");
        loop {
            pause.tick().await;
            let away_before = *away.borrow();
            let reply = ingest(program, &id).await.unwrap();
            match reply.status {
                202 => {
                    // A replay cost a token as well, if only of the burst.
                    seen.granted.fetch_add(1, Ordering::SeqCst);
                    answers.insert(id, reply.body);
                    break;
                }
                429 => {
                    assert!(!(away_before && *away.borrow()), "a store that is away refuses nobody");
                    seen.refused.fetch_add(1, Ordering::SeqCst);
                }
                500 | 503 => {
                    assert_eq!(reply.headers["content-type"], "application/problem+json");
                    let problem = reply.json();
                    assert_eq!(problem["status"], reply.status);
                    assert!(!problem.to_string().contains("sql"), "no cause leaves the service: {problem}");
                    seen.unavailable.fetch_add(1, Ordering::SeqCst);
                }
                409 => {} // A run whose end the store did not hear of holds the id for its lease.
                other => panic!("{other}: {reply:?}"),
            }
            if *stop.borrow() {
                return answers;
            }
        }
    }
    answers
}

/// Waits until `seen` has grown by `more`.
async fn grown(seen: &AtomicU64, more: u64, what: &str) {
    let (before, mut tick) = (seen.load(Ordering::SeqCst), tokio::time::interval(Duration::from_millis(20)));
    let growing = async {
        while seen.load(Ordering::SeqCst) < before + more {
            tick.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), growing).await.expect(what);
}

async fn outage(go: impl Fn(&Postgres), come: impl Fn(&Postgres)) {
    let place = Place::postgres();
    let program = Program::start(&place, &SET).await;
    let address = program.address;
    let (away, is_away) = watch::channel(false);
    let (stop, stopped) = watch::channel(false);
    let seen = Arc::new(Seen::default());
    let clock = MonotonicClock::start();
    let began = clock.now();
    let clients: Vec<_> = (0..8)
        .map(|n| tokio::spawn(client(n, address, seen.clone(), is_away.clone(), stopped.clone())))
        .collect();
    let Place::Postgres(postgres) = &place else { unreachable!() };

    for _ in 0..3 {
        grown(&seen.granted, 50, "requests are granted").await;
        go(postgres);
        away.send(true).unwrap();
        grown(&seen.unavailable, 8, "the outage is told").await;
        let ready = ask(address, Method::GET, "/readyz", String::new()).await.unwrap();
        assert_eq!(ready.status, 503);
        let alive = ask(address, Method::GET, "/healthz", String::new()).await.unwrap();
        assert_eq!(alive.status, 200);
        away.send(false).unwrap();
        come(postgres);
    }
    grown(&seen.granted, 100, "it is back by itself").await;
    assert_eq!(ask(address, Method::GET, "/readyz", String::new()).await.unwrap().status, 200);
    stop.send(true).unwrap();

    let mut answers = BTreeMap::new();
    for client in clients {
        answers.append(&mut client.await.unwrap());
    }
    let seconds = clock.now().since(began).as_secs_f64();
    let granted = seen.granted.load(Ordering::SeqCst) as f64;
    let allowed = BURST as f64 * (1.0 + seconds);
    assert!(granted <= allowed, "{granted} of {allowed} in {seconds} s");
    assert!(seen.refused.load(Ordering::SeqCst) > 0, "there was more demand than the budget holds");

    // Those whose last answer was lost were asked for once more than they were answered.
    let jobs = place.jobs();
    let unanswered: Vec<_> =
        jobs.into_iter().map(|(id, ..)| id).filter(|id| !answers.contains_key(id)).collect();
    for id in unanswered {
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        let reply = loop {
            tick.tick().await;
            let reply = ingest(address, &id).await.unwrap();
            if reply.status == 202 {
                break reply;
            }
        };
        answers.insert(id, reply.body);
    }
    demand_exactly(&place, &answers).await;
    program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_a_stopped_server_is_never_a_refusal_and_ends_by_itself() {
    outage(
        |postgres| postgres.stop(Shutdown::Immediate).unwrap(),
        |postgres| postgres.start_again().unwrap(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_a_paused_server_is_never_a_refusal_and_ends_by_itself() {
    outage(|postgres| postgres.pause().unwrap(), |postgres| postgres.resume().unwrap()).await;
}

/// Somebody holds the write lock of the file: a backup, or a person with `sqlite3`.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_a_locked_file_is_never_a_refusal_and_ends_by_itself() {
    let place = Place::sqlite();
    let program = Program::start(&place, &SET).await;
    let Place::Sqlite(directory) = &place else { unreachable!() };
    let other = rusqlite::Connection::open(directory.path().join("memory.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let address = program.address;
    let asked = (0..4).map(|i| async move { ingest(address, &format!("id-{i}")).await.unwrap() });
    for reply in futures::future::join_all(asked).await {
        assert_eq!((reply.status, reply.json()["status"].as_u64()), (503, Some(503)), "{reply:?}");
    }
    let alive = ask(address, Method::GET, "/healthz", String::new()).await.unwrap();
    assert_eq!(alive.status, 200);
    other.execute_batch("ROLLBACK").unwrap();
    let answers = [("id-0".to_owned(), ingest(address, "id-0").await.unwrap())];
    assert_eq!(answers[0].1.status, 202, "{answers:?}");
    demand_exactly(&place, &answers.map(|(id, reply)| (id, reply.body)).into()).await;
    program.stop().await;
}

/// Searches whose clients hung up held their connections as long as the server worked on them, and those who came next
/// waited behind.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_one_table_does_not_spread_when_clients_hang_up() {
    let place = Place::postgres();
    let program = Program::start(&place, &SET).await;
    let Place::Postgres(postgres) = &place else { unreachable!() };
    let reply = ingest(program.address, "id-0").await.unwrap();
    demand_exactly(&place, &[("id-0".to_owned(), reply.body)].into()).await;
    let (other, connection) = tokio_postgres::connect(&postgres.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    other.batch_execute("BEGIN; LOCK TABLE memory.items").await.unwrap();

    let searches: Vec<_> = (0..8)
        .map(|_| tokio::spawn(ask(program.address, Method::GET, "/memory/query?q=one", String::new())))
        .collect();
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'memory.items'::regclass";
    while postgres.psql(waiting).unwrap() != "8" {
        tokio::task::yield_now().await;
    }
    for search in searches {
        search.abort(); // Which closes its connection.
        assert!(search.await.unwrap_err().is_cancelled());
    }
    let reply = ask(program.address, Method::GET, "/memory/projects", String::new()).await.unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
    while postgres.psql(waiting).unwrap() != "0" {
        tokio::task::yield_now().await;
    }
    other.batch_execute("ROLLBACK").await.unwrap();
    program.stop().await;
}

/// Every request was 503, and `/readyz` went on to say that the service was ready: it asked the jobs alone, whose
/// connections do not notice that the file is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_whose_file_is_gone_is_not_ready_until_it_is_put_back() {
    let place = Place::sqlite();
    let program = Program::start(&place, &SET).await;
    let Place::Sqlite(directory) = &place else { unreachable!() };
    let (file, away) = (directory.path().join("memory.db"), directory.path().join("away.db"));
    let ready = || ask(program.address, Method::GET, "/readyz", String::new());
    assert_eq!(ready().await.unwrap().status, 200);
    std::fs::rename(&file, &away).unwrap();
    assert_eq!(ready().await.unwrap().status, 503);
    assert!(!file.exists(), "and no empty file took its place");
    std::fs::rename(&away, &file).unwrap();
    assert_eq!(ready().await.unwrap().status, 200);
    program.stop().await;
}

/// The JSON lines, as they are written wherever no one sits at a terminal, said that the store was unavailable, and nothing
/// of why: of an error they hold what it says itself, and its sources were lost.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_holds_the_cause_of_an_unavailable_store_under_the_correlation_id() {
    let place = Place::postgres();
    let program = Program::start(&place, &[]).await;
    let Place::Postgres(postgres) = &place else { unreachable!() };
    postgres.stop(Shutdown::Immediate).unwrap();
    let asked = [
        (Method::GET, "/readyz", String::new()),
        (Method::GET, "/memory/query", String::new()),
        (Method::POST, "/memory/ingest", program::batch("one")),
    ];
    for (method, path, body) in asked {
        let answer = ask(program.address, method, path, body).await.unwrap();
        assert_eq!(answer.status, 503, "{path}");
        let id = answer.headers["x-correlation-id"].to_str().unwrap();
        program.logs(&[id, "ERROR", "store is unavailable: ", "connect"]).await;
    }
    program.stop().await;
}
