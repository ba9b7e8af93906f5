//! A store whose rules change while it runs: what was spent stays spent.
#![cfg(all(feature = "memory", feature = "sqlite", feature = "postgres"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use admit::{BudgetStore, Charge, Cost, Decision, Key, Now, Retention, Rules, Scope, TakeError, Timestamp};
use admit_store::AnyStore;
use admit_testbed::Postgres;
use tempfile::TempDir;

const A: Scope = Scope::from_static("a");
const B: Scope = Scope::from_static("b");
const C: Scope = Scope::from_static("c");
const D: Scope = Scope::from_static("d");

fn rules(scopes: &[Scope], hours: u64) -> Rules {
    let retention = Retention::new(Duration::from_secs(hours * 3_600)).unwrap();
    Rules { retention, ..Rules::new(scopes.iter().cloned()).unwrap() }
}

fn at(seconds: u64) -> Now {
    Now::At(Timestamp::from_unix_micros(1_750_000_000_000_000 + seconds as i64 * 1_000_000).unwrap())
}

/// Takes from the one bucket of a scope, and tells what is left; nothing for a refusal.
async fn take(store: &AnyStore, scope: &Scope, cost: f64, budget: &str, now: Now) -> Option<f64> {
    let charge = Charge {
        scope: scope.clone(),
        key: Key::of("k"),
        cost: Cost::new(cost).unwrap(),
        budget: budget.parse().unwrap(),
    };
    match store.take(&[charge], now).await.unwrap() {
        Decision::Granted(grant) => grant.left[0],
        Decision::Refused(_) => None,
    }
}

/// Every kind of store, and what it lives in.
async fn stores() -> Vec<(AnyStore, Option<TempDir>, Option<Postgres>)> {
    let directory = tempfile::tempdir().unwrap();
    let postgres = Postgres::fast().unwrap();
    let file = format!("sqlite:{}", directory.path().join("admit.db").display());
    let open = async |url: &str| AnyStore::open(url, rules(&[B, C], 1)).await.unwrap();
    vec![
        (open("memory:").await, None, None),
        (open(&file).await, Some(directory), None),
        (open(&postgres.url()).await, None, Some(postgres)),
    ]
}

#[tokio::test]
async fn other_scopes_find_the_buckets_that_were_there_processes() {
    for (before, _directory, _postgres) in stores().await {
        assert_eq!(take(&before, &B, 8.0, "10/minute", at(0)).await, Some(2.0));
        assert_eq!(take(&before, &C, 9.0, "10/minute", at(0)).await, Some(1.0));

        let after = before.with_rules(rules(&[A, B, D], 1)).await.unwrap();
        assert_eq!(take(&after, &B, 1.0, "10/minute", at(0)).await, Some(1.0), "the debt of b is kept");
        assert_eq!(take(&after, &A, 1.0, "10/minute", at(0)).await, Some(9.0));
        assert_eq!(take(&after, &D, 2.0, "10/minute", at(0)).await, Some(8.0));
        let unknown = after.take(&[Charge::one(C, Key::of("k"), "1/s".parse().unwrap())], at(0)).await;
        assert!(matches!(unknown, Err(TakeError::Charge(_))), "c is no scope of these rules");
        assert_eq!(take(&before, &C, 1.0, "10/minute", at(0)).await, Some(0.0), "who began before goes on");

        let again = after.with_rules(rules(&[A, B, C], 1)).await.unwrap();
        assert_eq!(take(&again, &C, 1.0, "10/minute", at(0)).await, None, "a scope comes back to its debts");
    }
}

#[tokio::test]
async fn a_lowered_burst_clamps_at_once_and_a_raised_one_gives_no_fresh_burst_processes() {
    for (store, _directory, _postgres) in stores().await {
        assert_eq!(take(&store, &B, 10.0, "100/minute", at(0)).await, Some(90.0));
        let store = store.with_rules(rules(&[B, C], 1)).await.unwrap();
        assert_eq!(take(&store, &B, 1.0, "5/minute", at(0)).await, Some(4.0), "clamped");
        assert_eq!(take(&store, &B, 0.5, "1000/minute", at(0)).await, Some(3.5), "not filled up");
    }
}

/// The sweep deletes what the next take would mint. A bucket that a budget with a long fill took from would be minted
/// full too early if a shorter retention counted at once: a request that began before still goes by that budget.
#[tokio::test]
async fn a_shorter_retention_mints_nothing_for_who_began_before_processes() {
    for (first, _directory, _postgres) in stores().await {
        let before = first.with_rules(rules(&[B], 24)).await.unwrap();
        assert_eq!(take(&before, &B, 24.0, "24/day", at(0)).await, Some(0.0));
        let after = before.with_rules(rules(&[B], 1)).await.unwrap();
        for handle in [&first, &after] {
            assert_eq!(handle.delete_idle(at(2 * 3_600)).await.unwrap(), 0);
        }
        assert_eq!(take(&before, &B, 1.0, "24/day", at(2 * 3_600)).await, Some(1.0));
        assert_eq!(after.delete_idle(at(27 * 3_600)).await.unwrap(), 1);
    }
}
