//! What was seen too empty is refused in the process: exactly, until it may fit, and with no look at the file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(feature = "sqlite")]

use std::path::Path;
use std::time::Duration;

use admit::{
    BudgetStore, Charge, Clock, Cost, Decision, Key, ManualClock, Now, Rules, Scope, TakeError, Timestamp,
    Wait,
};
use admit_store::AnyStore;
use admit_store::sqlite::rusqlite::{Connection, Transaction, TransactionBehavior};
use admit_store::sqlite::{Settings, SqliteStore};

const A: Scope = Scope::from_static("a");

async fn open(path: &Path, refusals: usize) -> (SqliteStore, ManualClock) {
    let settings = Settings { refusals, busy_timeout: Duration::ZERO, ..Settings::default() };
    let clock = ManualClock::at(Timestamp::MIN);
    let rules = Rules::new([A]).unwrap();
    (SqliteStore::open_with(path, rules, settings, clock.clone()).await.unwrap(), clock)
}

/// While it lives, nobody else can take.
fn hold(connection: &mut Connection) -> Transaction<'_> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

fn costs(tokens: f64, budget: &str) -> [Charge; 1] {
    let charge = Charge::one(A, Key::hashed("k"), budget.parse().unwrap());
    [Charge { cost: Cost::new(tokens).unwrap(), ..charge }]
}

async fn take(store: &SqliteStore, tokens: f64, budget: &str) -> Result<Decision, TakeError> {
    store.take(&costs(tokens, budget), Now::Store).await
}

async fn is_granted(store: &SqliteStore, tokens: f64) -> bool {
    take(store, tokens, "2/hour").await.unwrap().is_granted()
}

fn wait(refused: Result<Decision, TakeError>) -> Duration {
    match refused.unwrap().refusal().unwrap().longest() {
        (0, Wait::After(wait)) => wait,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_bucket_that_is_known_to_be_empty_refuses_without_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let (store, clock) = open(&path, 16).await;
    let mut other = Connection::open(&path).unwrap();
    assert!(is_granted(&store, 1.5).await);
    let first = wait(take(&store, 1.0, "2/hour").await);
    assert_eq!(first, Duration::from_secs(900));

    let held = hold(&mut other);
    assert_eq!(wait(take(&store, 1.0, "2/hour").await), first);
    clock.advance(first - Duration::from_micros(1));
    for _ in 0..100 {
        assert_eq!(wait(take(&store, 1.0, "2/hour").await), Duration::from_micros(1));
    }
    clock.set(Timestamp::MIN);
    assert_eq!(wait(take(&store, 1.0, "2/hour").await), first, "a clock that is set back takes nothing away");
    clock.advance(first);
    assert!(take(&store, 1.0, "2/hour").await.is_err(), "that may fit, and the file has to tell");
    drop(held);
    assert!(is_granted(&store, 1.0).await);
}

/// A smaller cost, or a larger budget, may fit where another did not.
#[tokio::test]
async fn what_may_fit_is_asked_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let (store, clock) = open(&path, 16).await;
    let mut other = Connection::open(&path).unwrap();
    assert!(is_granted(&store, 1.5).await);
    clock.advance(Duration::from_secs(1));
    for (cost, budget) in [(0.5, "2/hour"), (1.0, "7000/hour")] {
        assert!(!is_granted(&store, 1.0).await);
        let held = hold(&mut other);
        assert!(!is_granted(&store, 1.0).await);
        assert!(take(&store, cost, budget).await.is_err());
        drop(held);
    }
    assert!(take(&store, 1.0, "7000/hour").await.unwrap().is_granted());
    assert!(!is_granted(&store, 2.0).await, "nobody is refused by what was seen before that");
    assert_eq!(
        wait(take(&store, 2.0, "2/hour").await),
        wait(open(&path, 0).await.0.take(&costs(2.0, "2/hour"), Now::At(clock.now())).await)
    );
}

/// Refunds, resets and sweeps by this process are seen at once.
#[tokio::test]
async fn what_is_given_back_is_not_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let (store, clock) = open(&directory.path().join("admit.db"), 16).await;
    assert!(is_granted(&store, 2.0).await && !is_granted(&store, 1.0).await);
    store.refund(&costs(1.0, "2/hour")).await.unwrap();
    assert!(is_granted(&store, 1.0).await && !is_granted(&store, 1.0).await);
    assert!(AnyStore::Sqlite(store.clone()).delete_bucket(&A, Key::hashed("k")).await.unwrap());
    assert!(is_granted(&store, 2.0).await && !is_granted(&store, 2.0).await);
    let later = clock.now().saturating_add(Duration::from_secs(7_200));
    assert_eq!(store.delete_idle(Now::At(later)).await.unwrap(), 1);
    assert!(is_granted(&store, 2.0).await);
}

#[tokio::test]
async fn with_no_room_for_refusals_the_file_is_asked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let (store, _clock) = open(&path, 0).await;
    let mut other = Connection::open(&path).unwrap();
    assert!(is_granted(&store, 2.0).await && !is_granted(&store, 1.0).await);
    let held = hold(&mut other);
    assert!(take(&store, 1.0, "2/hour").await.is_err());
    drop(held);
}
