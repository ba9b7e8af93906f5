//! PostgreSQL, and what asks it: Admit's store, and the statements that it is compared with.

mod connection;
mod statements;
mod store;

use std::any::Any;

use admit_testbed::Postgres;
use anyhow::Result;

pub(crate) use connection::SelectOne;
pub(crate) use statements::{GuardedUpdate, SingleStatement, statements};
pub(crate) use store::{Admitting, Store, store};

/// A server that flushes each commit, with room for the connections of both sides.
pub(crate) fn server() -> Result<Postgres> {
    Postgres::with_settings(SETTINGS)
}

/// As a small server in production has them; without them each checkpoint comes after a few seconds of load.
pub(crate) const SETTINGS: [&str; 3] = ["max_connections=200", "shared_buffers=256MB", "max_wal_size=4GB"];

/// Writes out what the last run left behind, so that it is not written while another side runs.
///
/// # Errors
/// If it is a server that does not answer. Whatever else a case shares is left alone.
pub(crate) fn settle(servers: &dyn Any) -> Result<()> {
    match servers.downcast_ref::<Postgres>() {
        Some(server) => server.psql("CHECKPOINT").map(drop),
        None => Ok(()),
    }
}
