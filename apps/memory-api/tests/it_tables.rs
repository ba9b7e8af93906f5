//! Tables in PostgreSQL that are not those of this version stop the start, with words that name what is wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use admit_testbed::Postgres;
use tokio::process::Command;

/// What the program says when it does not start on this database; nothing if it does.
async fn refused(postgres: &Postgres, database: &str) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_memory-api"));
    program.env_clear().env("MEM_LISTEN", "127.0.0.1:0").env("MEM_DATABASE_URL", postgres.url_for(database));
    let output = program.kill_on_drop(true).output();
    let output = tokio::time::timeout(std::time::Duration::from_secs(30), output).await;
    let output = output.expect("it does not start").unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

/// A service on tables that somebody had changed, or whose version was not one, started, and failed each request: a
/// version below 0 was taken for the newest, and no version at all was `query returned an unexpected number of rows`.
#[tokio::test]
async fn what_is_wrong_with_the_tables_is_named_at_the_start() {
    let postgres = Postgres::fast().unwrap();
    let made = include_str!("../src/storage/postgres/migrations/0001_memory.sql");
    let made = format!(
        "CREATE SCHEMA memory; CREATE TABLE memory.schema_version (version integer NOT NULL); \
         INSERT INTO memory.schema_version VALUES (1); {made}"
    );
    for (i, (before, damage, named)) in [
        (&made[..], "UPDATE memory.schema_version SET version = 7", "is of version 7, newer than the 1 that"),
        (&made, "UPDATE memory.schema_version SET version = -1", "holds [-1]"),
        (&made, "UPDATE memory.schema_version SET version = 0", "relation \"jobs\" already exists"),
        (&made, "DELETE FROM memory.schema_version", "holds []"),
        (&made, "INSERT INTO memory.schema_version VALUES (1)", "holds [1, 1]"),
        (&made, "ALTER TABLE memory.schema_version RENAME version TO v", "column \"version\" does not exist"),
        (&made, "DROP TABLE memory.skills", "relation \"memory.skills\" does not exist"),
        (&made, "ALTER TABLE memory.jobs DROP COLUMN payload", "column \"payload\" does not exist"),
        (&made, "DROP TEXT SEARCH CONFIGURATION memory.words", "\"memory.words\" does not exist"),
        (
            "CREATE SCHEMA memory;",
            "CREATE TABLE memory.jobs (id integer)",
            "relation \"jobs\" already exists",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let database = format!("damaged_{i}");
        postgres.psql(&format!("CREATE DATABASE {database}")).unwrap();
        postgres.psql_in(&database, &format!("{before}; {damage}")).unwrap();
        let said = refused(&postgres, &database).await;
        assert!(said.contains("memory-api does not start: ") && said.contains(named), "{damage}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}
