//! The statement that sessions keep: behind a pooler, and whatever the settings of a session.

use admit::{BudgetStore, Now, Timestamp};
use admit_store::memory::MemoryStore;
use admit_store::postgres::{PostgresConfig, PostgresStore, tokio_postgres};
use admit_testbed::{PgBouncer, Postgres};
use futures::future::join_all;

use crate::{INGEST, charge, rules, store};

fn at(micros: i64) -> Now {
    Now::At(Timestamp::from_unix_micros(1_700_000_000_000_000 + micros).unwrap())
}

async fn in_schema(url: &str, schema: &str) -> PostgresStore {
    let mut config = PostgresConfig::new(url);
    config.schema = schema.parse().unwrap();
    PostgresStore::connect(config, rules()).await.unwrap()
}

/// The sessions that still know a statement.
async fn known(url: &str) -> i64 {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let count = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'admit%'";
    client.query_typed_one(count, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_session_that_forgets_the_statement_debits_once_all_the_same() {
    let postgres = Postgres::fast().unwrap();
    let pooler = PgBouncer::start(&postgres).unwrap();
    let url = pooler.url_for("postgres");
    let store = store(&url).await;
    let (other, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let reference = MemoryStore::new(rules());
    let one = [charge(INGEST, "k", 1.0, "100/hour")];
    for i in 0..40 {
        let expected = reference.take(&one, at(0)).await.unwrap();
        assert_eq!(store.take(&one, at(0)).await.unwrap(), expected, "{i}");
        if i == 0 {
            assert_eq!(known(&url).await, 1, "the pooler gives the session that was used last");
        }
        if i % 3 == 1 {
            other.batch_execute("DEALLOCATE ALL").await.unwrap();
        }
    }
    assert_eq!(store.unanswered_takes(), 0);
}

/// By the numbered names of the protocol, one store would have run the statement of another.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_many_stores_share_run_the_statement_of_each() {
    let postgres = Postgres::fast().unwrap();
    let pooler = PgBouncer::start(&postgres).unwrap();
    let url = pooler.url_for("postgres");
    let (mut stores, schemas) = (Vec::new(), ["admit", "plexsphere", "third"]);
    for schema in schemas {
        for _ in 0..3 {
            stores.push((schema, in_schema(&url, schema).await));
        }
    }
    let takes = stores.into_iter().map(|(schema, store)| {
        tokio::spawn(async move {
            let mut granted = 0;
            for _ in 0..50 {
                let charges = [charge(INGEST, "hot", 1.0, "100/hour")];
                granted += u32::from(store.take(&charges, at(0)).await.unwrap().is_granted());
            }
            (schema, granted)
        })
    });
    let told: Vec<(&str, u32)> = join_all(takes).await.into_iter().map(Result::unwrap).collect();
    for schema in schemas {
        let granted: u32 = told.iter().filter(|(of, _)| *of == schema).map(|(_, granted)| granted).sum();
        assert_eq!(granted, 100, "{schema}");
        let left = postgres.psql(&format!("SELECT tokens FROM {schema}.rate_budgets")).unwrap();
        assert_eq!(left, "0", "{schema}");
    }
}

/// The answer is read as text: settings that cut digits off or write dates in another way must not reach it.
#[tokio::test]
async fn no_setting_of_a_session_changes_an_answer() {
    let postgres = Postgres::fast().unwrap();
    for setting in [
        "extra_float_digits = -12",
        "DateStyle = 'SQL, DMY'",
        "TimeZone = 'Asia/Kathmandu'",
        "IntervalStyle = 'sql_standard'",
        "bytea_output = 'escape'",
        "standard_conforming_strings = off",
        "plan_cache_mode = force_custom_plan",
    ] {
        postgres.psql(&format!("ALTER DATABASE postgres SET {setting}")).unwrap();
    }
    let (store, reference) = (store(&postgres.url()).await, MemoryStore::new(rules()));
    let mut unkept = PostgresConfig::new(postgres.url());
    unkept.prepare = false;
    let unkept = PostgresStore::connect(unkept, rules()).await.unwrap();
    for (i, cost) in [0.1, 1e-9, 0.7, 1.0 / 3.0, 7.3, 2.0, 1e-7, 9.9].into_iter().enumerate() {
        let moment = at(1 + 1_234_567 * i as i64);
        let charges = [charge(INGEST, "k", cost, "0.3/s burst 10")];
        let expected = reference.take(&charges, moment).await.unwrap();
        let asked = if i % 4 == 3 { &unkept } else { &store };
        assert_eq!(asked.take(&charges, moment).await.unwrap(), expected, "{cost}");
    }
    for (tokens, moment) in [(9_007_199_254_740_992.0, Timestamp::MIN), (1e-9, Timestamp::MAX)] {
        let charges = [charge(INGEST, "extreme", tokens, "9007199254740992/s")];
        let expected = reference.take(&charges, Now::At(moment)).await.unwrap();
        assert_eq!(store.take(&charges, Now::At(moment)).await.unwrap(), expected, "{tokens}");
    }
}

/// Transactions became serializable while the store ran, in which a take does not see what was committed while it waited.
#[tokio::test]
async fn another_default_isolation_is_noticed_by_a_take_that_is_alone() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let one = [charge(INGEST, "k", 1.0, "100/hour")];
    assert!(store.take(&one, at(0)).await.unwrap().is_granted());
    postgres.psql("ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'").unwrap();
    postgres
        .psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'admit'")
        .unwrap();
    let mut unavailable = 0;
    while let Err(error) = store.take(&one, at(0)).await {
        unavailable += 1;
        assert!(unavailable < 20, "{error:?}");
    }
    assert_eq!(postgres.psql("SELECT tokens FROM admit.rate_budgets").unwrap(), "98");
}
