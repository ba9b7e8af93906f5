//! Opening the file: rights, journal, schema.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use admit::Rules;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use super::buckets::{ADD_SCOPE, raise_retention};
use super::named_file::NamedFiles;

/// The statements that a store keeps prepared, with some to spare.
const PREPARED: usize = 32;

/// How often a file is asked to keep a write-ahead log while other processes open it too.
const JOURNAL_ATTEMPTS: u32 = 100;

/// The version of the schema that this program knows.
const VERSION: u32 = 5;

/// What makes the schema, in order; the position is the version. A migration that was released is never changed.
const MIGRATIONS: [&str; VERSION as usize] = [
    include_str!("migrations/0001_rate_budgets.sql"),
    include_str!("migrations/0002_idempotency.sql"),
    include_str!("migrations/0003_leaderships.sql"),
    include_str!("migrations/0004_api_keys.sql"),
    include_str!("migrations/0005_retention.sql"),
];

/// What they make, in that order.
const TABLES: [&str; 7] = [
    "rate_budget_scopes",
    "rate_budgets",
    "idempotency_records",
    "idempotency_fence",
    "leaderships",
    "api_keys",
    "retention",
];

/// Why a file could not be opened as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file could not be made.
    #[error("cannot create the database file {path}")]
    Create {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The path names a directory.
    #[error("{path} is a directory; name a file in it")]
    Directory {
        /// The path.
        path: PathBuf,
    },
    /// SQLite cannot use the file.
    #[error("cannot use {path} as a SQLite database")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// The file cannot have a write-ahead log.
    #[error(
        "{path} keeps no write-ahead log (its journal mode is {mode}); it must be a file on a local disk"
    )]
    Journal {
        /// The file.
        path: PathBuf,
        /// The journal mode that it has instead.
        mode: String,
    },
    /// A newer version of the store has written the file.
    #[error(
        "{path} has version {found} of the schema, newer than the {known} that this program knows; upgrade it"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version of this program.
        known: u32,
    },
    /// Somebody dropped a table.
    #[error(
        "{path} has no table {table}, which its version of the schema has; restore the file, or name another"
    )]
    Table {
        /// The file.
        path: PathBuf,
        /// The table.
        table: &'static str,
    },
    /// The file or its log was gone again before it could be used.
    #[error("{path} or its log was deleted while it was opened")]
    Gone {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The thread for the connection could not be started.
    #[error("cannot start the thread that writes to {path}")]
    Thread {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A connection to the file, which is made if there is none, with the schema of this version, and the scopes and the retention of
/// `rules` in it.
pub(super) fn open(
    path: &Path,
    rules: &Rules,
    busy_timeout: Duration,
) -> Result<(Connection, NamedFiles, String), OpenError> {
    create(path)?;
    let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    connection.busy_timeout(busy_timeout).map_err(sqlite)?;
    connection.set_prepared_statement_cache_capacity(PREPARED);
    let mode = keep_log(&mut connection).map_err(sqlite)?;
    if mode != "wal" {
        return Err(OpenError::Journal { path: path.to_owned(), mode });
    }
    // Full: a commit is on the disk before it is answered, so that a power loss forgets nothing that was.
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON").map_err(sqlite)?;
    let (found, migrated) = migrate(&mut connection, rules).map_err(sqlite)?;
    if found > VERSION {
        return Err(OpenError::Newer { path: path.to_owned(), found, known: VERSION });
    }
    for table in TABLES {
        let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        let there: u32 = connection.query_row(sql, [table], |row| row.get(0)).map_err(sqlite)?;
        if there == 0 {
            return Err(OpenError::Table { path: path.to_owned(), table });
        }
    }
    let files = NamedFiles::of(&connection, path)
        .map_err(|source| OpenError::Gone { path: path.to_owned(), source })?;
    Ok((connection, files, migrated))
}

/// Makes the file, for its owner alone; SQLite gives its logs the same rights. A file that is there keeps its rights.
fn create(path: &Path) -> Result<(), OpenError> {
    // Closing any descriptor of a file drops the locks that this process has on it, so nobody may open it meanwhile.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if path.is_dir() {
        return Err(OpenError::Directory { path: path.to_owned() });
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(OpenError::Create { path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

/// Switches to a write-ahead log. SQLite does not wait for its lock there when two processes switch at once, so this
/// waits for the other's transaction, no longer than for any, and asks again.
fn keep_log(connection: &mut Connection) -> rusqlite::Result<String> {
    let mut attempts = 0;
    loop {
        let mode = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0));
        attempts += 1;
        match mode {
            Err(error) if is_busy(&error) && attempts < JOURNAL_ATTEMPTS => {
                drop(connection.transaction_with_behavior(TransactionBehavior::Immediate)?);
            }
            done => return done,
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Brings the schema up to date, adds scopes and raises the retention, in one transaction, so that processes may do so at once. Tells the
/// version that was found, or made, and what was done. The version is kept in a table, as `user_version` belongs to the application.
fn migrate(connection: &mut Connection, rules: &Rules) -> rusqlite::Result<(u32, String)> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS admit_migrations (version INTEGER PRIMARY KEY NOT NULL) STRICT",
    )?;
    let found: u32 =
        transaction
            .query_row("SELECT ifnull(max(version), 0) FROM admit_migrations", [], |row| row.get(0))?;
    if found > VERSION {
        return Ok((found, String::new()));
    }
    let mut done = Vec::new();
    for (version, migration) in (1_u32..).zip(MIGRATIONS).skip(found as usize) {
        transaction.execute_batch(migration)?;
        transaction.execute("INSERT INTO admit_migrations VALUES (?1)", [version])?;
        done.push(format!("migration {version}"));
    }
    for scope in &rules.scopes {
        if transaction.execute(ADD_SCOPE, [scope.as_str()])? > 0 {
            done.push(format!("the scope {scope}"));
        }
    }
    raise_retention(&transaction, rules.retention)?;
    transaction.commit()?;
    Ok((VERSION, done.join("; ")))
}
