//! A file that is deleted or replaced under a running store. Once nobody noticed: the store went on in a file without a
//! name, and a restart forgot all debts and completed keys.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(all(feature = "sqlite", unix))]

use std::error::Error;
use std::fs;
use std::path::Path;

use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Terms};
use admit::{
    BudgetStore, Charge, Decision, IdempotencyError, IdempotencyStore, Key, Now, Rules, Scope, Timestamp,
};
use admit_store::sqlite::SqliteStore;
use admit_store::sqlite::rusqlite::{Connection, TransactionBehavior};

const A: Scope = Scope::from_static("a");
const NOON: Now = Now::At(Timestamp::MIN);

async fn open(path: &Path) -> SqliteStore {
    let rules = Rules::new([A]).unwrap();
    SqliteStore::open(path, rules).await.unwrap()
}

fn charges() -> [Charge; 1] {
    [Charge::one(A, Key::of("k"), "5/hour".parse().unwrap())]
}

async fn assert_takes(store: &SqliteStore) {
    assert!(store.take(&charges(), NOON).await.unwrap().is_granted());
}

async fn left(store: &SqliteStore) -> f64 {
    let Decision::Granted(grant) = store.peek(&charges(), NOON).await.unwrap() else { return 0.0 };
    grant.left[0].unwrap()
}

/// Takes and looks are unavailable, and the log is told which file it was.
async fn assert_lost(store: &SqliteStore, file: &Path) {
    let error = store.take(&charges(), NOON).await.unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(
        cause.contains(file.to_str().unwrap()) && cause.contains("deleted or replaced"),
        "{error}: {cause}"
    );
    assert!(store.peek(&charges(), NOON).await.is_err());
    assert!(store.delete_idle(NOON).await.is_err());
}

#[tokio::test]
async fn a_deleted_file_is_unavailable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let store = open(&path).await;
    assert_takes(&store).await;
    fs::remove_file(&path).unwrap();
    assert_lost(&store, &path).await;
}

#[tokio::test]
async fn a_deleted_log_is_unavailable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let store = open(&path).await;
    assert_takes(&store).await;
    let log = directory.path().join("admit.db-wal");
    fs::remove_file(&log).unwrap();
    assert_lost(&store, &log).await;
    drop(store);
    assert!(left(&open(&path).await).await <= 4.0, "a restart remembers what the log held");
}

#[tokio::test]
async fn a_replaced_file_is_unavailable_until_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (path, backup) = (directory.path().join("admit.db"), directory.path().join("backup.db"));
    drop(open(&backup).await);
    let store = open(&path).await;
    assert_takes(&store).await;
    fs::rename(&backup, &path).unwrap();
    assert_lost(&store, &path).await;
    drop(store);
    // What is left of the old log is not mixed into the new file.
    let store = open(&path).await;
    assert_eq!(left(&store).await, 5.0, "the backup was made before any take");
}

#[tokio::test]
async fn a_file_that_is_put_back_is_available_again() {
    let directory = tempfile::tempdir().unwrap();
    let (path, away) = (directory.path().join("admit.db"), directory.path().join("away.db"));
    let store = open(&path).await;
    assert_takes(&store).await;
    fs::rename(&path, &away).unwrap();
    assert_lost(&store, &path).await;
    fs::rename(&away, &path).unwrap();
    assert_takes(&store).await;
}

#[tokio::test]
async fn a_service_does_not_complete_a_record_in_a_replaced_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let store = open(&path).await;
    let (key, terms) = (RecordKey::new("tenant", "POST", "/orders", "k"), Terms::default());
    let claim = store.claim(&key, &Fingerprint::of("{}"), &terms, NOON).await.unwrap();
    let Claim::Run(ticket) = claim else { panic!("the key was free") };
    let mut service = Connection::open(&path).unwrap();
    let transaction = service.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    fs::remove_file(&path).unwrap();
    let outcome = Outcome::Tombstone { status: 202 };
    let error = store.complete_in(&transaction, &ticket, &outcome, &terms, NOON).unwrap_err();
    assert!(matches!(error, IdempotencyError::Unavailable(_)), "{error:?}");
}
