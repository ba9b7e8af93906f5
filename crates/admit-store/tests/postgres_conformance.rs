//! The conformance suite over PostgreSQL, directly and through PgBouncer in transaction mode.
#![cfg(all(feature = "postgres", feature = "conformance"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use admit::{BudgetStore, Now, Rules, Timestamp};
use admit_store::postgres::{PostgresConfig, PostgresStore};
use admit_testbed::{PgBouncer, Postgres};

async fn connect(url: &str, rules: Rules) -> PostgresStore {
    PostgresStore::connect(PostgresConfig::new(url), rules).await.unwrap()
}

mod direct {
    use super::*;

    async fn fresh(rules: Rules) -> (PostgresStore, Postgres) {
        let postgres = Postgres::fast().unwrap();
        (connect(&postgres.url(), rules).await, postgres)
    }

    admit_store::conformance_tests!(fresh);
}

/// `direct` has both.
mod settings {
    use super::*;

    async fn holds_with(batch: usize, refusals: usize) {
        let postgres = Postgres::fast().unwrap();
        let mut config = PostgresConfig::new(postgres.url());
        (config.batch, config.refusals) = (batch, refusals);
        let store = PostgresStore::connect(config, admit_store::conformance::rules()).await.unwrap();
        let fresh = async |_: Rules| {
            store.delete_idle(Now::At(Timestamp::MAX)).await.unwrap();
            (store.clone(), ())
        };
        admit_store::conformance_in_turn!(fresh);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_cases_on_buckets_hold_where_no_statement_is_shared() {
        holds_with(1, 16_384).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_cases_on_buckets_hold_without_memory_of_refusals() {
        holds_with(4_096, 0).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_cases_on_buckets_hold_with_neither() {
        holds_with(1, 0).await;
    }

    /// Statements are full before all is in them, and buckets share a place in memory.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_cases_on_buckets_hold_with_little_of_both() {
        holds_with(3, 2).await;
    }
}

mod pooled {
    use super::*;

    async fn fresh(rules: Rules) -> (PostgresStore, (PgBouncer, Postgres)) {
        let postgres = Postgres::fast().unwrap();
        let pooler = PgBouncer::start(&postgres).unwrap();
        (connect(&pooler.url_for("postgres"), rules).await, (pooler, postgres))
    }

    admit_store::conformance_tests!(fresh);
}
