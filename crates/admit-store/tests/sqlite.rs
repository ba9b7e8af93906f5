//! The SQLite store against the suite.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(all(feature = "sqlite", feature = "conformance"))]

use admit::{Rules, SystemClock};
use admit_store::sqlite::{Settings, SqliteStore};
use tempfile::TempDir;

async fn fresh(rules: Rules) -> (SqliteStore, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("admit.db"), rules).await.unwrap();
    (store, directory)
}

admit_store::conformance_tests!(fresh);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cases_on_buckets_hold_without_memory_of_refusals() {
    let settings = Settings { refusals: 0, ..Settings::default() };
    let fresh = async |rules: Rules| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admit.db");
        (SqliteStore::open_with(path, rules, settings, SystemClock).await.unwrap(), directory)
    };
    admit_store::conformance_in_turn!(fresh);
}
