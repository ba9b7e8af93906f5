//! One file: what a refusal writes, what a service commits with its own rows, what an operator reads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(feature = "sqlite")]

use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Terms};
use admit::{
    BudgetStore, Charge, Cost, IdempotencyError, IdempotencyStore, Key, ManualClock, Now, Rules, Scope,
    Timestamp,
};
use admit_store::sqlite::rusqlite::{Connection, TransactionBehavior};
use admit_store::sqlite::{Settings, SqliteStore};
use std::time::Duration;

const A: Scope = Scope::from_static("a");
const NOON: Now = Now::At(Timestamp::MIN);

fn rules() -> Rules {
    Rules::new([A]).unwrap()
}

fn charge(key: &str) -> Charge {
    Charge::one(A, Key::of(key), "1/hour".parse().unwrap())
}

fn key() -> RecordKey {
    RecordKey::new("tenant", "POST", "/orders", "k")
}

#[tokio::test]
async fn a_refusal_writes_nothing_to_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let store = SqliteStore::open(&path, rules()).await.unwrap();
    assert!(store.take(&[charge("k")], NOON).await.unwrap().is_granted());
    let bytes =
        || ["admit.db", "admit.db-wal"].map(|name| std::fs::read(directory.path().join(name)).unwrap());
    let before = bytes();
    for _ in 0..100 {
        assert!(!store.take(&[charge("k")], NOON).await.unwrap().is_granted());
        assert!(!store.take(&[charge("k"), charge("fresh")], NOON).await.unwrap().is_granted());
        assert!(!store.peek(&[charge("k")], NOON).await.unwrap().is_granted());
    }
    assert!(bytes() == before, "the file and its log are as they were");
}

#[tokio::test]
async fn a_service_commits_its_rows_and_the_record_together() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let store = SqliteStore::open(&path, rules()).await.unwrap();
    let (payload, terms) = (Fingerprint::of("{}"), Terms::default());
    let outcome = Outcome::Tombstone { status: 202 };
    let mut service = Connection::open(&path).unwrap();
    service.execute_batch("CREATE TABLE jobs (id INTEGER PRIMARY KEY)").unwrap();
    let jobs = |service: &Connection| {
        service.query_row("SELECT count(*) FROM jobs", [], |row| row.get::<_, i64>(0)).unwrap()
    };

    let Claim::Run(ticket) = store.claim(&key(), &payload, &terms, NOON).await.unwrap() else { panic!() };
    for commits in [false, true] {
        let transaction = service.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        transaction.execute("INSERT INTO jobs DEFAULT VALUES", []).unwrap();
        store.complete_in(&transaction, &ticket, &outcome, &terms, NOON).unwrap();
        if commits {
            transaction.commit().unwrap();
        } else {
            transaction.rollback().unwrap(); // The service failed after it had completed the record.
        }
        let look = store.look(&key(), &payload, &terms, NOON).await.unwrap();
        assert_eq!(matches!(look, Some(Claim::Done(_))), commits);
        assert_eq!(jobs(&service), i64::from(commits));
    }
    let transaction = service.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let again = store.complete_in(&transaction, &ticket, &outcome, &terms, NOON);
    assert!(matches!(again, Err(IdempotencyError::TicketLost)));
}

#[tokio::test]
async fn an_operator_reads_the_bucket_by_its_uuid() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let store = SqliteStore::open(&path, rules()).await.unwrap();
    let uuid = "00112233-4455-6677-8899-aabbccddeeff";
    let half = Charge { cost: Cost::new(0.5).unwrap(), ..charge(uuid) };
    assert!(store.take(&[half], NOON).await.unwrap().is_granted());
    let read = "SELECT scope, tokens, datetime(refilled_at / 1e6, 'unixepoch') FROM rate_budgets WHERE bucket_key = ?1";
    let row: (String, f64, String) = Connection::open(&path)
        .unwrap()
        .query_row(read, [uuid], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap();
    assert_eq!(row, ("a".into(), 0.5, "1970-01-01 00:00:00".into()));
}

#[tokio::test]
async fn a_file_that_another_holds_too_long_is_unavailable_and_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let settings = Settings { busy_timeout: Duration::ZERO, ..Settings::default() };
    let clock = ManualClock::at(Timestamp::MIN);
    let store = SqliteStore::open_with(&path, rules(), settings, clock).await.unwrap();
    let mut other = Connection::open(&path).unwrap();
    let held = other.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let error = store.take(&[charge("k")], Now::Store).await.unwrap_err();
    assert_eq!(error.to_string(), "the SQLite store is unavailable");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("locked"), "{error:?}");
    drop(held);
    assert!(store.take(&[charge("k")], Now::Store).await.unwrap().is_granted());
}
