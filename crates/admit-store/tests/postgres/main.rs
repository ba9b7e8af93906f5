//! The PostgreSQL store on real servers.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admissions;
mod coalescing;
mod completion;
mod encryption;
mod fences;
mod held;
mod law;
mod migrations;
mod outage;
mod plans;
mod shape;
mod table;
mod traces;

use std::time::Duration;

use admit::{Charge, Cost, Decision, Key, Rules, Scope, TakeError, UnavailableKind};
use admit_store::postgres::{PostgresConfig, PostgresStore, tokio_postgres};
use admit_testbed::Postgres;

const INGEST: Scope = Scope::from_static("ingest_node");
const READ: Scope = Scope::from_static("secret_read_node");

/// How many takes share a statement, and how many refusals are remembered: each on and off.
const SETTINGS: [(usize, usize); 4] = [(4_096, 16_384), (4_096, 0), (1, 16_384), (1, 0)];

fn rules() -> Rules {
    Rules::new([INGEST, READ]).unwrap()
}

async fn store(url: &str) -> PostgresStore {
    PostgresStore::connect(PostgresConfig::new(url), rules()).await.unwrap()
}

/// For tests that want every answer, however slow the machine is.
async fn patient(url: &str, (batch, refusals): (usize, usize)) -> PostgresStore {
    let mut config = PostgresConfig::new(url);
    (config.batch, config.refusals) = (batch, refusals);
    let long = Duration::from_secs(60);
    (config.acquire_timeout, config.lock_timeout, config.statement_timeout) = (long, long, long);
    PostgresStore::connect(config, rules()).await.unwrap()
}

/// Whose statements wait for rows for as long as a test takes.
async fn waits_for_rows(postgres: &Postgres) -> PostgresStore {
    let mut config = PostgresConfig::new(postgres.url());
    (config.lock_timeout, config.statement_timeout) = (Duration::from_secs(60), Duration::from_secs(60));
    PostgresStore::connect(config, rules()).await.unwrap()
}

/// A session of its own.
async fn session(postgres: &Postgres) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&postgres.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn kind(answer: Result<Decision, TakeError>) -> UnavailableKind {
    match answer {
        Err(TakeError::Unavailable(cause)) => cause.kind(),
        other => panic!("{other:?}"),
    }
}

fn charge(scope: Scope, key: &str, cost: f64, budget: &str) -> Charge {
    Charge { scope, key: Key::of(key), cost: Cost::new(cost).unwrap(), budget: budget.parse().unwrap() }
}

/// Waits until so many statements wait for a lock.
async fn lock_waits(postgres: &Postgres, count: &str) {
    while postgres.psql("SELECT count(*) FROM pg_locks WHERE NOT granted").unwrap() != count {
        tokio::task::yield_now().await;
    }
}

/// What the server has logged so far.
fn logged(postgres: &Postgres) -> String {
    let log = || std::fs::read_to_string(postgres.home().path().join("log")).unwrap();
    let marks = |log: &str| log.matches("LOG:  so far").count();
    let before = marks(&log());
    postgres.psql("DO $$ BEGIN RAISE LOG 'so far'; END $$").unwrap();
    while marks(&log()) == before {
        std::thread::yield_now(); // The log is written behind the answer.
    }
    log()
}

/// An error with all its causes, as a log shows it.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
