//! The store in a SQLite file.

mod connections;
mod jobs;
mod migrations;
mod search;

use std::path::Path;

use admit::{Clock, Now, SystemClock, Timestamp, Unavailable};

use self::connections::{Connections, WriteError};

/// The store in a SQLite file. Clones share its connections.
#[derive(Clone, Debug)]
pub struct SqliteStorage {
    connections: Connections,
}

impl SqliteStorage {
    /// Opens the file, makes it if there is none, and brings its tables up to date.
    ///
    /// # Errors
    /// [`Unavailable`] if the file cannot be opened, or belongs to a newer version of the service.
    pub async fn open(path: &Path) -> Result<Self, Unavailable> {
        let connections = Connections::new(path);
        connections.write(migrations::run).await.map_err(WriteError::into_unavailable)?;
        Ok(Self { connections })
    }
}

/// There is one machine, so its clock is the store's.
fn moment(now: Now) -> Timestamp {
    match now {
        Now::Store => SystemClock.now(),
        Now::At(moment) => moment,
    }
}

/// A stored time. Only times of this service are stored, and they are in range.
fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_unix_micros(micros).unwrap_or(Timestamp::MIN)
}
