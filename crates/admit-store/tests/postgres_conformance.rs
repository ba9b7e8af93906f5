//! The conformance suite over PostgreSQL, directly and through PgBouncer in transaction mode.
#![cfg(all(feature = "postgres", feature = "conformance"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use admit::Rules;
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

mod pooled {
    use super::*;

    async fn fresh(rules: Rules) -> (PostgresStore, (PgBouncer, Postgres)) {
        let postgres = Postgres::fast().unwrap();
        let pooler = PgBouncer::start(&postgres).unwrap();
        (connect(&pooler.url_for("postgres"), rules).await, (pooler, postgres))
    }

    admit_store::conformance_tests!(fresh);
}
