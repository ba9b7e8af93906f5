//! PostgreSQL, and what asks it: Admit's store, and the statements that it is compared with.

mod connection;
mod statements;
mod store;

use anyhow::Result;

pub(crate) use connection::SelectOne;
pub(crate) use statements::{GuardedUpdate, SingleStatement, statements};
pub(crate) use store::{Admitting, Store, store};

/// A server that flushes each commit, with room for the connections of both sides.
pub(crate) fn server() -> Result<admit_testbed::Postgres> {
    admit_testbed::Postgres::with_settings(SETTINGS)
}

/// As a small server in production has them; without them each checkpoint comes after a few seconds of load.
pub(crate) const SETTINGS: [&str; 3] = ["max_connections=200", "shared_buffers=256MB", "max_wal_size=4GB"];
