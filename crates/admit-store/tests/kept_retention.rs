//! Who sweeps a store that others use too, by a shorter retention than theirs: what is owed stays owed.
#![cfg(all(feature = "memory", feature = "sqlite", feature = "postgres"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use admit::{BudgetStore, Charge, Cost, Decision, Key, Now, Retention, Rules, Scope, Timestamp};
use admit_store::AnyStore;
use admit_store::maintenance::Maintenance;
use admit_store::postgres::{PostgresConfig, PostgresStore};
use admit_store::sqlite::rusqlite::Connection;
use admit_testbed::Postgres;
use futures::future::join_all;
use tempfile::TempDir;

const A: Scope = Scope::from_static("a");
const HOUR: u64 = 3_600;

fn rules(hours: u64) -> Rules {
    let retention = Retention::new(Duration::from_secs(hours * HOUR)).unwrap();
    Rules { retention, ..Rules::new([A]).unwrap() }
}

fn at(hours: u64) -> Now {
    Now::At(Timestamp::from_unix_micros(1_750_000_000_000_000 + (hours * HOUR) as i64 * 1_000_000).unwrap())
}

async fn open(url: &str, hours: u64) -> AnyStore {
    AnyStore::open(url, rules(hours)).await.unwrap()
}

/// Takes from a bucket of 24 tokens a day, and tells what is left; nothing for a refusal.
async fn take(store: &AnyStore, key: &str, cost: f64, now: Now) -> Option<f64> {
    let (key, cost) = (Key::of(key), Cost::new(cost).unwrap());
    let charge = Charge { scope: A, key, cost, budget: "24/day".parse().unwrap() };
    match store.take(&[charge], now).await.unwrap() {
        Decision::Granted(grant) => grant.left[0],
        Decision::Refused(_) => None,
    }
}

/// A database that several processes may share.
struct Shared {
    url: String,
    directory: Option<TempDir>,
    postgres: Option<Postgres>,
}

impl Shared {
    fn each() -> [Self; 2] {
        let directory = tempfile::tempdir().unwrap();
        let file = format!("sqlite:{}", directory.path().join("admit.db").display());
        let postgres = Postgres::fast().unwrap();
        [
            Self { url: file, directory: Some(directory), postgres: None },
            Self { url: postgres.url(), directory: None, postgres: Some(postgres) },
        ]
    }

    /// Runs a statement of an operator. The schema of PostgreSQL's tables is none in SQLite.
    fn run(&self, sql: &str) {
        match (&self.directory, &self.postgres) {
            (Some(directory), _) => {
                let connection = Connection::open(directory.path().join("admit.db")).unwrap();
                connection.execute_batch(&sql.replace("admit.", "")).unwrap();
            }
            (_, Some(postgres)) => drop(postgres.psql(sql).unwrap()),
            (None, None) => unreachable!(),
        }
    }
}

/// Each process swept by the retention of its own policy. One with hourly budgets, or an older replica while the retention
/// was raised, deleted buckets that a daily budget had drained two hours ago, and the next take minted them full.
#[tokio::test]
async fn a_sweep_by_a_shorter_retention_changes_no_decision_processes() {
    for shared in Shared::each() {
        let hourly_before = open(&shared.url, 1).await;
        let daily = open(&shared.url, 24).await;
        let hourly_after = open(&shared.url, 1).await;
        assert_eq!(take(&daily, "drained", 24.0, at(0)).await, Some(0.0));
        for (i, hourly) in (0..).zip([hourly_before, hourly_after]) {
            assert_eq!(hourly.delete_idle(at(2 + i)).await.unwrap(), 0, "{}", shared.url);
            let swept = Maintenance::new(hourly).tick(at(2 + i)).await.unwrap();
            assert_eq!(swept.map_or(0, |swept| swept.buckets), 0, "{}", shared.url);
        }
        assert_eq!(take(&daily, "drained", 4.0, at(3)).await, None, "{}: three came back", shared.url);
        assert_eq!(take(&daily, "drained", 3.0, at(3)).await, Some(0.0), "{}", shared.url);
        assert_eq!(daily.delete_idle(at(3 + 24)).await.unwrap(), 0, "idle for exactly the retention");
        assert_eq!(open(&shared.url, 1).await.delete_idle(at(3 + 25)).await.unwrap(), 1);
    }
}

/// A restart by a policy without the daily budget forgot the retention, as it was kept in the memory of the process alone.
#[tokio::test]
async fn a_restart_and_a_reload_forget_no_retention_processes() {
    for shared in Shared::each() {
        let first = open(&shared.url, 1).await;
        let daily = first.with_rules(rules(24)).await.unwrap();
        assert_eq!(take(&daily, "drained", 24.0, at(0)).await, Some(0.0));
        drop((first, daily));
        let hourly = open(&shared.url, 1).await;
        assert_eq!(hourly.delete_idle(at(2)).await.unwrap(), 0, "{}", shared.url);
        let daily = hourly.with_rules(rules(24)).await.unwrap();
        assert_eq!(take(&daily, "drained", 3.0, at(2)).await, None, "{}: two came back", shared.url);
    }
}

/// The tables of the version before keep no retention: who opens them adds it, and the buckets stay.
#[tokio::test]
async fn tables_of_an_older_version_learn_to_keep_it_processes() {
    for shared in Shared::each() {
        let daily = open(&shared.url, 24).await;
        assert_eq!(take(&daily, "drained", 24.0, at(0)).await, Some(0.0));
        drop(daily);
        shared.run("DROP TABLE admit.retention");
        match &shared.postgres {
            None => shared.run("DELETE FROM admit_migrations WHERE version = 5"),
            Some(_) => shared.run(
                "DROP FUNCTION admit.raise_retention; DELETE FROM admit.migrations WHERE version >= 5; \
                 DROP FUNCTION admit.take_one, admit.take_each, admit.take_many, admit.held_buckets, admit.level, admit.elapsed; \
                 DROP FUNCTION admit.delete_idle, admit.delete_idle_pages, admit.admit, admit.idempotency_is_free; \
                 CREATE FUNCTION admit.delete_idle(idle_micros bigint, at timestamptz, batch integer) RETURNS bigint \
                 LANGUAGE sql RETURN 0",
            ),
        }
        let daily = open(&shared.url, 24).await;
        assert!(daily.migrated().unwrap().contains('5'), "{:?}", daily.migrated());
        assert_eq!(open(&shared.url, 1).await.delete_idle(at(2)).await.unwrap(), 0, "{}", shared.url);
        assert_eq!(take(&daily, "drained", 3.0, at(2)).await, None, "{}: two came back", shared.url);
        assert_eq!(daily.delete_idle(at(25)).await.unwrap(), 1, "{}", shared.url);
    }
}

/// An operator may lower it, and a store that finds none goes by its own.
#[tokio::test]
async fn an_operator_may_lower_it_processes() {
    for shared in Shared::each() {
        for lower in ["UPDATE admit.retention SET retention_micros = 0", "DELETE FROM admit.retention"] {
            let daily = open(&shared.url, 24).await;
            assert_eq!(take(&daily, "drained", 24.0, at(0)).await, Some(0.0));
            drop(daily);
            shared.run(lower);
            assert_eq!(open(&shared.url, 2).await.delete_idle(at(2)).await.unwrap(), 0, "{}", shared.url);
            assert_eq!(open(&shared.url, 2).await.delete_idle(at(3)).await.unwrap(), 1, "{}", shared.url);
            let kept = open(&shared.url, 24).await;
            assert_eq!(take(&kept, "drained", 24.0, at(3)).await, Some(0.0), "minted");
            assert_eq!(open(&shared.url, 1).await.delete_idle(at(6)).await.unwrap(), 0, "raised again");
            kept.delete_bucket(&A, Key::of("drained")).await.unwrap();
        }
    }
}

/// Of replicas that start at once the longest retention is kept, whichever comes last.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_open_at_once_the_longest_is_kept_processes() {
    for shared in Shared::each() {
        let openers = [3, 8, 1, 24, 2, 7, 4, 5].map(|hours| {
            let url = shared.url.clone();
            tokio::spawn(async move { open(&url, hours).await })
        });
        let stores: Vec<_> = join_all(openers).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(take(&stores[3], "drained", 24.0, at(0)).await, Some(0.0));
        for store in stores {
            assert_eq!(store.delete_idle(at(23)).await.unwrap(), 0, "{}", shared.url);
        }
    }
}

/// A take of several buckets may wait for the first for as long as its statement may last. A replica whose statements end
/// sooner took only its own into account, and deleted the others, which were not full yet when that take read the clock.
#[tokio::test]
async fn the_sweep_waits_for_the_slowest_take_of_any_replica() {
    let postgres = Postgres::fast().unwrap();
    let swift = PostgresStore::connect(PostgresConfig::new(postgres.url()), rules(1)).await.unwrap();
    let idle =
        "INSERT INTO admit.rate_budgets VALUES ('a', gen_random_uuid(), 0, now() - interval '70 minutes')";
    postgres.psql(idle).unwrap();
    let mut config = PostgresConfig::new(postgres.url());
    config.statement_timeout = Duration::from_secs(20 * 60);
    let slow = PostgresStore::connect(config, rules(1)).await.unwrap();
    assert_eq!(swift.delete_idle(Now::Store).await.unwrap(), 0);
    drop(slow);
    postgres.psql("UPDATE admit.rate_budgets SET refilled_at = now() - interval '90 minutes'").unwrap();
    assert_eq!(swift.delete_idle(Now::Store).await.unwrap(), 1);
}
