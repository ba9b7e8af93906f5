//! What went wrong with a statement, as a log may tell it.

use std::error::Error;
use std::fmt;

use tokio_postgres::error::SqlState;

/// Why a statement failed. Of what the server said it shows the message and the code, and leaves out the detail, which
/// repeats a row that was refused: whatever a caller had sent would stand in the log.
pub struct StatementError(tokio_postgres::Error);

impl StatementError {
    /// The server's code, if it was the server that said so.
    pub fn code(&self) -> Option<&SqlState> {
        self.0.code()
    }
}

impl From<tokio_postgres::Error> for StatementError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for StatementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_db_error() {
            Some(said) => write!(f, "{}: {} ({})", said.severity(), said.message(), said.code().code()),
            None => self.0.fmt(f),
        }
    }
}

/// As it is displayed.
impl fmt::Debug for StatementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StatementError({self})")
    }
}

impl Error for StatementError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        if self.0.as_db_error().is_some() { None } else { self.0.source() }
    }
}
