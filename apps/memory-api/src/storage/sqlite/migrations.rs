//! Brings the tables of a file up to date.

use rusqlite::Transaction;

/// Each brings the tables from the version of its place to the next.
const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001_memory.sql")];

/// Runs what the file has not seen, in the caller's transaction: it has the write lock, so that of several processes
/// that start at once one migrates and the others find it done.
///
/// The version is kept in a table: `user_version` belongs to whoever else keeps tables in the file.
pub(super) fn run(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS memory_schema (version INTEGER NOT NULL) STRICT;
         INSERT INTO memory_schema SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM memory_schema);",
    )?;
    let version: i64 = transaction.query_row("SELECT version FROM memory_schema", [], |row| row.get(0))?;
    let known = MIGRATIONS.len() as i64;
    if version > known {
        let newer = format!("the tables are of version {version}; this service knows {known}");
        return Err(rusqlite::Error::ToSqlConversionFailure(newer.into()));
    }
    for migration in MIGRATIONS.iter().skip(version.unsigned_abs() as usize) {
        transaction.execute_batch(migration)?;
    }
    transaction.execute("UPDATE memory_schema SET version = ?1", [known])?;
    Ok(())
}
