//! The store in a SQLite file.

mod connections;
mod jobs;
mod migrations;
mod search;

use std::path::Path;

use admit::{Now, SystemClock, Timestamp, Unavailable};
use admit_store::sqlite::SqliteStore;

use self::connections::{Connections, WriteError};

/// The store in a SQLite file. Clones share its connections.
#[derive(Clone, Debug)]
pub struct SqliteStorage {
    connections: Connections,
    /// Completes records in the same transactions; its tables are in the same file.
    store: SqliteStore,
}

impl SqliteStorage {
    /// Opens the file, makes it if there is none, and brings its tables up to date.
    ///
    /// # Errors
    /// [`Unavailable`] if the file cannot be opened, or belongs to a newer version of the service.
    pub async fn open(path: &Path, store: SqliteStore) -> Result<Self, Unavailable> {
        let connections = Connections::new(path);
        let migrated = connections.write(|transaction| Ok(migrations::run(transaction)?)).await;
        migrated.map_err(WriteError::into_unavailable)?;
        Ok(Self { connections, store })
    }
}

/// There is one machine, so its clock is the store's.
fn moment(now: Now) -> Timestamp {
    now.or_by(&SystemClock)
}

/// A stored time. Only times of this service are stored, and they are in range.
fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_unix_micros(micros).unwrap_or(Timestamp::MIN)
}
