//! An error and what caused it, in one line of a log.

use std::error::Error;
use std::fmt;

/// Shows an error, then its [source](Error::source), then that one's, with colons between them.
///
/// A log needs it: of an error that is given as such, `tracing`'s JSON lines hold what it says itself and nothing of its
/// sources, and [`Unavailable`](crate::Unavailable) alone says only which store did not answer.
///
/// ```
/// use admit::{Causes, Unavailable};
///
/// let cause = std::io::Error::other("the disk is full");
/// assert_eq!(Causes(&Unavailable::new("SQLite", cause)).to_string(), "the SQLite store is unavailable: the disk is full");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Causes<'a>(pub &'a dyn Error);

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut error = self.0.source();
        while let Some(cause) = error {
            write!(f, ": {cause}")?;
            error = cause.source();
        }
        Ok(())
    }
}
