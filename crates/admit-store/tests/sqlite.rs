//! The SQLite store against the suite.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(all(feature = "sqlite", feature = "conformance"))]

use admit::Rules;
use admit_store::sqlite::SqliteStore;
use tempfile::TempDir;

async fn fresh(rules: Rules) -> (SqliteStore, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("admit.db"), rules).await.unwrap();
    (store, directory)
}

admit_store::conformance_tests!(fresh);
