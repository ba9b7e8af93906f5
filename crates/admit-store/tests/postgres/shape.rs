//! Tables that are not those of this version stop the start, with words that name what is wrong.

use admit_store::postgres::{ConnectError, PostgresConfig, PostgresStore};
use admit_testbed::Postgres;

use crate::{chain, rules, store};

async fn refused(postgres: &Postgres, database: &str) -> ConnectError {
    let config = PostgresConfig::new(postgres.url_for(database));
    PostgresStore::connect(config, rules()).await.expect_err(database)
}

/// An older program started on the tables of a newer one, and called functions that may not be there any more.
#[tokio::test]
async fn tables_of_a_newer_version_are_left_alone() {
    let postgres = Postgres::fast().unwrap();
    store(&postgres.url()).await;
    postgres
        .psql(
            "INSERT INTO admit.migrations SELECT 10, 'to_come', applied_on, '1' FROM admit.migrations LIMIT 1",
        )
        .unwrap();
    let error = refused(&postgres, "postgres").await;
    assert!(matches!(error, ConnectError::Newer { found: 10, known: 9, .. }), "{error:?}");
    let text = chain(&error);
    assert!(text.contains("schema admit") && text.contains("upgrade"), "{text}");
}

/// A store whose history was complete started whatever had become of its tables, and each call failed.
#[tokio::test]
async fn what_was_dropped_or_changed_is_named_at_the_start() {
    let postgres = Postgres::fast().unwrap();
    for (i, (damage, named)) in [
        ("DROP TABLE admit.rate_budgets CASCADE", "the table rate_budgets"),
        (
            "ALTER TABLE admit.rate_budgets RENAME TO plain; CREATE TABLE admit.rate_budgets \
             (LIKE admit.plain, PRIMARY KEY (scope, bucket_key)) PARTITION BY HASH (bucket_key)",
            "the table rate_budgets",
        ),
        ("DROP TABLE admit.leaderships", "the table leaderships"),
        ("DROP TABLE admit.api_keys", "the table api_keys"),
        ("DROP TABLE admit.retention", "the table retention"),
        (
            "ALTER TABLE admit.rate_budgets RENAME tokens TO level",
            "the column tokens double precision of rate_budgets",
        ),
        (
            "ALTER TABLE admit.rate_budgets DROP CONSTRAINT rate_budgets_pkey",
            "the PRIMARY KEY (scope, bucket_key) of",
        ),
        (
            "ALTER TABLE admit.idempotency_records DROP COLUMN header_values",
            "the column header_values bytea[]",
        ),
        ("ALTER TABLE admit.leaderships ALTER fence TYPE integer", "the column fence bigint of leaderships"),
        ("DROP FUNCTION admit.refund", "the function refund(text[], uuid[], "),
        ("DROP FUNCTION admit.lead", "the function lead(text, text, bigint, "),
        ("DROP SEQUENCE admit.idempotency_fence", "the sequence idempotency_fence"),
    ]
    .into_iter()
    .enumerate()
    {
        let database = format!("damaged_{i}");
        postgres.psql(&format!("CREATE DATABASE {database}")).unwrap();
        store(&postgres.url_for(&database)).await;
        postgres.psql_in(&database, damage).unwrap();
        let error = refused(&postgres, &database).await;
        assert!(matches!(error, ConnectError::Damaged { .. }), "{damage}: {error:?}");
        let text = chain(&error);
        assert!(text.contains("schema admit") && text.contains(named), "{damage}: {text}");
    }
}

/// The list of what is looked for is that of what the migrations make.
#[tokio::test]
async fn all_that_the_migrations_make_is_looked_for() {
    let postgres = Postgres::fast().unwrap();
    store(&postgres.url()).await;
    let shape = include_str!("../../src/postgres/sql/shape.sql");
    let made = "SELECT format('(''%s'', ''%s''', c.relname, a.attname) FROM pg_attribute AS a
        JOIN pg_class AS c ON c.oid = a.attrelid AND c.relnamespace = 'admit'::regnamespace
        WHERE c.relkind = 'r' AND c.relname <> 'migrations' AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT format('(''%s'', ''{', proname) FROM pg_proc WHERE pronamespace = 'admit'::regnamespace";
    let made = postgres.psql(made).unwrap();
    assert_eq!(made.lines().count(), 25 + 23, "{made}");
    for what in made.lines() {
        assert!(shape.contains(what), "{what} is not looked for");
    }
}

/// Tables that another program made are not taken for the store's, and not touched.
#[tokio::test]
async fn tables_of_others_are_left_alone() {
    let postgres = Postgres::fast().unwrap();
    for (i, (theirs, named)) in [
        ("CREATE TABLE admit.rate_budgets (id integer)", "relation \"rate_budgets\" already exists"),
        ("CREATE VIEW admit.leaderships AS SELECT 1", "relation \"leaderships\" already exists"),
        ("CREATE TABLE admit.migrations (id integer)", "column \"version\" does not exist"),
    ]
    .into_iter()
    .enumerate()
    {
        let database = format!("theirs_{i}");
        postgres.psql(&format!("CREATE DATABASE {database}")).unwrap();
        postgres.psql_in(&database, &format!("CREATE SCHEMA admit; {theirs}")).unwrap();
        let text = chain(&refused(&postgres, &database).await);
        assert!(text.contains("schema admit") && text.contains(named), "{theirs}: {text}");
        let count = "SELECT count(*) FROM pg_class WHERE relnamespace = 'admit'::regnamespace";
        assert_eq!(postgres.psql_in(&database, count).unwrap(), "1", "{theirs}");
    }
}
