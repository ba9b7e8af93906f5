//! The statements use the indexes, and the file is what an operator and another process expect.

use std::time::Duration;

use admit::{Rules, Scope};
use rusqlite::Connection;

use super::*;

fn rules(scopes: &[&'static str]) -> Rules {
    Rules::new(scopes.iter().map(|name| Scope::from_static(name))).unwrap()
}

fn plan(connection: &Connection, sql: &str) -> String {
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let mut rows = statement.raw_query();
    let mut steps = Vec::<String>::new();
    while let Some(row) = rows.next().unwrap() {
        steps.push(row.get(3).unwrap());
    }
    steps.join("\n")
}

#[test]
fn every_statement_goes_by_an_index() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let connection = open::open(&path, &rules(&["a"]), Duration::ZERO).unwrap().0;
    for (sql, expected) in [
        (buckets::READ, "SEARCH rate_budgets USING PRIMARY KEY (scope=? AND bucket_key=?)"),
        (
            buckets::DELETE_IDLE,
            "SEARCH rate_budgets USING COVERING INDEX rate_budgets_refilled_at (refilled_at<?)",
        ),
        (buckets::DELETE_IDLE, "SEARCH rate_budgets USING PRIMARY KEY (scope=? AND bucket_key=?)"),
        (records::READ, "USING INDEX sqlite_autoindex_idempotency_records_1 (record_key=?)"),
        (records::DELETE, "USING INDEX sqlite_autoindex_idempotency_records_1 (record_key=?)"),
        (records::DELETE_EXPIRED, "INDEX idempotency_records_over_at (<expr><?)"),
        (records::READ_FENCE, "SEARCH idempotency_fence USING INTEGER PRIMARY KEY (rowid=?)"),
        (records::WRITE_FENCE, "SEARCH idempotency_fence USING INTEGER PRIMARY KEY (rowid=?)"),
        (leaderships::READ, "SEARCH leaderships USING PRIMARY KEY (name=?)"),
    ] {
        let plan = plan(&connection, sql);
        assert!(plan.contains(expected) && !plan.contains("SCAN"), "{sql}{plan}");
    }
    for sql in [buckets::WRITE, records::WRITE, leaderships::WRITE] {
        let plan = plan(&connection, sql);
        assert!(!plan.contains("SCAN"), "{sql}{plan}");
    }
}

#[test]
fn a_commit_is_on_the_disk_before_it_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let connection =
        open::open(&directory.path().join("admit.db"), &rules(&["a"]), Duration::ZERO).unwrap().0;
    let pragma =
        |name| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(pragma("synchronous"), 2, "FULL");
    assert_eq!(pragma("foreign_keys"), 1);
}

#[test]
fn the_set_of_scopes_is_closed_and_grows_with_the_stores() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let insert = "INSERT INTO rate_budgets VALUES ('b', '00112233-4455-6677-8899-aabbccddeeff', 1, 0)";
    let connection = open::open(&path, &rules(&["a"]), Duration::ZERO).unwrap().0;
    assert!(connection.execute(insert, []).is_err(), "a scope that no store was built with");
    let wider = open::open(&path, &rules(&["b"]), Duration::ZERO).unwrap().0;
    assert_eq!(wider.execute(insert, []), Ok(1));
    assert!(
        connection.execute("UPDATE rate_budgets SET tokens = -0.5", []).is_err(),
        "tokens are never negative"
    );
}

/// Endless tokens grant without end, and a row with a time that no store reads answers no take any more.
#[test]
fn no_row_holds_what_no_store_writes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let connection = open::open(&path, &rules(&["a"]), Duration::ZERO).unwrap().0;
    let bucket = "INSERT INTO rate_budgets VALUES ('a', '00112233-4455-6677-8899-aabbccddeeff', 1, 0)";
    let record =
        "INSERT INTO idempotency_records VALUES (zeroblob(32), zeroblob(32), 1, 0, 0, NULL, NULL, NULL)";
    let leadership = "INSERT INTO leaderships VALUES ('sweep', 'a', 1, 0)";
    connection.execute_batch(&[bucket, record, leadership].join("; ")).unwrap();
    for set in
        ["tokens = 9e999", "tokens = -9e999", "tokens = -1", "tokens = 9e999 - 9e999", "tokens = 'many'"]
    {
        assert!(connection.execute(&format!("UPDATE rate_budgets SET {set}"), []).is_err(), "{set}");
    }
    for (table, column) in [
        ("rate_budgets", "refilled_at"),
        ("idempotency_records", "lease_until"),
        ("idempotency_records", "expires_at"),
        ("leaderships", "lease_until"),
    ] {
        let set = |micros: &str| connection.execute(&format!("UPDATE {table} SET {column} = {micros}"), []);
        for micros in ["-1", "253402300800000000", "0.5", "'noon'"] {
            assert!(set(micros).is_err(), "{table}.{column} = {micros}");
        }
        set("253402300799999999").unwrap();
    }
    for status in ["-1", "65536"] {
        let set = format!("UPDATE idempotency_records SET lease_until = NULL, status = {status}");
        assert!(connection.execute(&set, []).is_err(), "{status}");
    }
}

#[test]
fn many_may_open_a_new_file_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let rules = rules(&["a", "b"]);
    std::thread::scope(|threads| {
        let openers: Vec<_> =
            (0..16).map(|_| threads.spawn(|| open::open(&path, &rules, Duration::from_secs(5)))).collect();
        for opener in openers {
            opener.join().unwrap().unwrap();
        }
    });
}

/// A file without a write-ahead log that another writes to was asked a hundred times, with a whole wait each time.
#[test]
fn a_file_that_another_holds_is_given_up_after_one_wait() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let mut other = Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE numbers (n INTEGER)").unwrap();
    let held = other.transaction_with_behavior(rusqlite::TransactionBehavior::Exclusive).unwrap();
    let wait = Duration::from_secs(2); // A hundred are more than this test is given.
    let error = open::open(&path, &rules(&["a"]), wait).unwrap_err();
    assert!(matches!(error, OpenError::Sqlite { .. }), "{error:?}");
    drop(held);
    open::open(&path, &rules(&["a"]), wait).unwrap();
}

#[tokio::test]
async fn what_cannot_be_opened_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let open = async |path: &Path| SqliteStore::open(path, rules(&["a"])).await.unwrap_err();

    let error = open(directory.path()).await;
    assert!(
        matches!(error, OpenError::Directory { .. })
            && error.to_string().contains(directory.path().to_str().unwrap())
    );
    let missing = directory.path().join("no such directory/admit.db");
    let error = open(&missing).await;
    assert!(matches!(error, OpenError::Create { .. }) && error.to_string().contains("no such directory"));
    let corrupt = directory.path().join("corrupt.db");
    std::fs::write(&corrupt, "this is a text and no database, however long one makes it").unwrap();
    let error = open(&corrupt).await;
    assert!(matches!(error, OpenError::Sqlite { .. }) && error.to_string().contains("corrupt.db"));
    let newer = directory.path().join("newer.db");
    drop(SqliteStore::open(&newer, rules(&["a"])).await.unwrap());
    Connection::open(&newer).unwrap().execute("INSERT INTO admit_migrations VALUES (99)", []).unwrap();
    assert!(matches!(open(&newer).await, OpenError::Newer { found: 99, .. }));
}

/// It was opened, and then each take was unavailable.
#[tokio::test]
async fn a_file_that_has_lost_a_table_is_not_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    drop(SqliteStore::open(&path, rules(&["a"])).await.unwrap());
    Connection::open(&path).unwrap().execute("DROP TABLE rate_budgets", []).unwrap();
    let error = SqliteStore::open(&path, rules(&["a"])).await.unwrap_err();
    assert!(matches!(error, OpenError::Table { table: "rate_budgets", .. }), "{error}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_new_file_is_its_owners_alone_and_an_old_one_keeps_its_rights() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let rights =
        |name: &str| std::fs::metadata(directory.path().join(name)).unwrap().permissions().mode() & 0o777;
    let store = SqliteStore::open(&path, rules(&["a"])).await.unwrap();
    assert_eq!([rights("admit.db"), rights("admit.db-wal"), rights("admit.db-shm")], [0o600; 3]);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let again = SqliteStore::open(&path, rules(&["a"])).await.unwrap();
    assert_eq!(rights("admit.db"), 0o640);
    drop((store, again));
}
