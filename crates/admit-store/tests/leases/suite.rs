//! The conformance suite. Without a leased scope all of it; with leases what they leave as it is: `answers.rs`, `callers.rs` and
//! `law.rs` have what takes the place of the rest.

mod off {
    use admit::Rules;
    use admit_store::leases::{Leased, Leases};
    use admit_store::memory::MemoryStore;

    async fn fresh(rules: Rules) -> (Leased<MemoryStore>, ()) {
        (Leased::new(MemoryStore::new(rules), Leases::default()), ())
    }

    admit_store::conformance_tests!(fresh);
}

mod on {
    use admit::Rules;
    use admit_store::leases::Leased;
    use admit_store::memory::MemoryStore;

    async fn fresh(rules: Rules) -> (Leased<MemoryStore>, ()) {
        (Leased::new(MemoryStore::new(rules), super::super::both("50%")), ())
    }

    admit_store::conformance_tests!(fresh, leased);
}

/// Leases on a store that is asked in another way, and that keeps what they ask for.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_with_memory_of_refusals_and_without() {
    use admit::{Rules, SystemClock};
    use admit_store::leases::Leased;
    use admit_store::sqlite::{Settings, SqliteStore};

    for refusals in [0, 16] {
        let settings = Settings { refusals, ..Settings::default() };
        let fresh = async |rules: Rules| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("admit.db");
            let store = SqliteStore::open_with(path, rules, settings, SystemClock).await.unwrap();
            (Leased::new(store, super::both("50%")), directory)
        };
        admit_store::conformance_in_turn!(fresh, leased);
    }
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_with_each_setting_on_and_off() {
    use admit::{BudgetStore, Now, Rules, Timestamp};
    use admit_store::leases::Leased;
    use admit_store::postgres::{PostgresConfig, PostgresStore};
    use admit_testbed::Postgres;

    let postgres = Postgres::fast().unwrap();
    for (batch, refusals) in [(1, 0), (1, 16), (4_096, 0), (4_096, 16)] {
        println!("batch {batch}, refusals {refusals}");
        let mut config = PostgresConfig::new(postgres.url());
        (config.batch, config.refusals) = (batch, refusals);
        let rules = admit_store::conformance::rules();
        let store = PostgresStore::connect(config, rules).await.unwrap();
        let fresh = async |_: Rules| {
            store.delete_idle(Now::At(Timestamp::MAX)).await.unwrap();
            (Leased::new(store.clone(), super::both("50%")), ())
        };
        admit_store::conformance_in_turn!(fresh, leased);
    }
}
