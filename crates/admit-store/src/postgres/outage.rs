//! In what way a server is away: it refuses, it is silent, it breaks off, or it says no.

use std::error::Error;
use std::io;

use admit::UnavailableKind;
use deadpool_postgres::PoolError;
use tokio_postgres::error::SqlState;

use super::ConnectionError;
use super::connections::sql_state;
use super::database::CallError;

pub(super) fn kind(error: &CallError) -> UnavailableKind {
    match error {
        // While a server is silent, its connections are busy with what it was asked: then none is free in time either.
        CallError::Connection(
            ConnectionError::TimedOut(_) | ConnectionError::Pool(PoolError::Timeout(_)),
        ) => UnavailableKind::TimedOut,
        CallError::Connection(error) => connecting(error),
        CallError::Statement(error) => match error.code() {
            // The two time limits of a statement: for all of it, and for the locks that it waits for.
            Some(code) if [SqlState::QUERY_CANCELED, SqlState::LOCK_NOT_AVAILABLE].contains(code) => {
                UnavailableKind::TimedOut
            }
            Some(code) if *code == SqlState::DISK_FULL => UnavailableKind::Full,
            Some(code) if ends_sessions(code) => UnavailableKind::Broken,
            Some(_) => UnavailableKind::Rejected,
            None => UnavailableKind::Broken, // The server said nothing: the connection is gone.
        },
        CallError::Answer(_) => UnavailableKind::Failed,
    }
}

/// No connection could be made.
fn connecting(error: &ConnectionError) -> UnavailableKind {
    if sql_state(error).is_some() {
        return UnavailableKind::Refused; // Too many connections, starting, stopping, or not for this user.
    }
    match io_error(error).map(io::Error::kind) {
        Some(io::ErrorKind::TimedOut) => UnavailableKind::TimedOut,
        Some(io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe) => {
            UnavailableKind::Broken
        }
        Some(_) => UnavailableKind::Refused, // Nobody listens, or there is no such host.
        // tokio-postgres tells its own connect timeout as an io::Error; without one the server closed the connection.
        None => UnavailableKind::Broken,
    }
}

fn io_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// The class of an operator who intervenes: a server that stops, or a session that is ended.
pub(super) fn ends_sessions(code: &SqlState) -> bool {
    [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW].contains(code)
}
