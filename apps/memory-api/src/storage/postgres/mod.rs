//! The store in PostgreSQL, in the schema `memory`.

mod connections;
mod jobs;
mod migrations;
mod search;

use std::time::{Duration, SystemTime};

use admit::{Now, Timestamp, Unavailable};
use admit_store::postgres::PostgresStore;

use self::connections::{Connections, Failure};

/// The store in PostgreSQL. Clones share its connections.
#[derive(Clone, Debug)]
pub struct PostgresStorage {
    connections: Connections,
    /// Completes records in the same transactions; its tables are in the same database.
    store: PostgresStore,
}

impl PostgresStorage {
    /// Connects, and brings the tables up to date.
    ///
    /// # Errors
    /// [`Unavailable`] if the server cannot be reached, or its tables belong to a newer version of the service.
    pub async fn connect(url: &str, store: PostgresStore) -> Result<Self, Unavailable> {
        let connections = Connections::new(url)?;
        migrations::run(&connections).await?;
        Ok(Self { connections, store })
    }
}

/// Null is the server's clock: one for all processes.
fn moment(now: Now) -> Option<SystemTime> {
    now.given().map(SystemTime::from)
}

fn timestamp(time: SystemTime) -> Result<Timestamp, Failure> {
    Timestamp::try_from(time).map_err(Failure::stored)
}

fn micros(duration: Duration) -> f64 {
    duration.as_micros() as f64 // PostgreSQL multiplies intervals by doubles; 2^53 µs are 285 years.
}
