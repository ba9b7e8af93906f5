//! A statement that sessions keep parsed and planned, also behind a pooler.
//!
//! To parse and plan a take of one bucket costs the server as much as the take. Statements that are prepared by the protocol have
//! names that the client numbers; behind a pooler, where a session serves many clients, such a name may stand for the statement of
//! another. So this one is prepared in SQL, under a name that is a hash of its text: whoever prepared it, it is the same. A
//! session that does not know the name says so, and has done nothing.

use std::sync::atomic::{AtomicI32, Ordering};

use admit::Key;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, SimpleQueryMessage, SimpleQueryRow};

/// How often a session is asked, by turns with the statement and without, before it is sent as others are.
const ATTEMPTS: usize = 4;

/// Where `credit` begins, and no more.
const MOST_CREDIT: i32 = 256;

/// What an answer of a session that did not know the statement, or knew it already, costs. Beyond a pooler's first sessions most
/// should know it; where they forget it after each transaction, it is not worth while.
const MISS: i32 = 4;

/// A statement that sessions keep.
#[derive(Debug)]
pub(super) struct KeptStatement {
    execute: String,
    prepare: String,
    /// What answers that came at once have earned; at zero, the statement is kept no more.
    credit: AtomicI32,
}

impl KeptStatement {
    /// `sql` with parameters of these types, which depends on nothing but what it names with its schema.
    pub(super) fn new(types: &str, sql: &str, is_of_use: bool) -> Self {
        let text = format!("({types}) AS {sql}");
        let name = format!("admit_{}", Key::of(&text)).replace('-', "_");
        Self {
            execute: format!("EXECUTE {name}"),
            prepare: format!("PREPARE {name} {text}; "),
            credit: AtomicI32::new(if is_of_use { MOST_CREDIT } else { 0 }),
        }
    }

    /// Whether sessions keep it.
    pub(super) fn is_of_use(&self) -> bool {
        self.credit.load(Ordering::Relaxed) > 0
    }

    /// Runs it with these arguments, literals in parentheses, in a transaction of its own. Nothing if the session cannot keep it; then
    /// nothing was done.
    pub(super) async fn run(
        &self,
        client: &Client,
        arguments: &str,
    ) -> Result<Option<Vec<SimpleQueryMessage>>, Error> {
        let execute = format!("{}{arguments}", self.execute);
        for attempt in 0..ATTEMPTS {
            let answer = match attempt % 2 {
                0 => client.simple_query(&execute).await,
                _ => client.simple_query(&format!("{}{execute}", self.prepare)).await,
            };
            let error = match answer {
                Ok(messages) => {
                    self.earn(1);
                    return Ok(Some(messages));
                }
                Err(error) => error,
            };
            match error.code() {
                // Behind a pooler the next attempt may be another session's.
                Some(&SqlState::INVALID_SQL_STATEMENT_NAME | &SqlState::DUPLICATE_PSTATEMENT) => {
                    self.earn(-MISS);
                }
                // The server undoes what it fails.
                Some(&SqlState::FEATURE_NOT_SUPPORTED) => {
                    self.credit.store(0, Ordering::Relaxed);
                    return Ok(None);
                }
                // Perhaps a pooler that lets no such statement pass; perhaps a connection behind it that broke off, and then it may be done.
                Some(&SqlState::PROTOCOL_VIOLATION) => {
                    self.credit.store(0, Ordering::Relaxed);
                    return Err(error);
                }
                _ => return Err(error),
            }
        }
        Ok(None)
    }

    /// Once it is of no use, it stays so.
    fn earn(&self, credit: i32) {
        let earned = |before: i32| (before > 0).then(|| (before + credit).min(MOST_CREDIT));
        let _ = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earned);
    }
}

/// The row of an answer.
pub(super) fn row(messages: Vec<SimpleQueryMessage>) -> Option<SimpleQueryRow> {
    messages.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_one_for_one_text_alone() {
        let one = KeptStatement::new("text", "SELECT $1", true);
        assert_eq!(one.execute, KeptStatement::new("text", "SELECT $1", false).execute);
        assert_ne!(one.execute, KeptStatement::new("text", "SELECT $1 ", true).execute);
        assert_ne!(one.execute, KeptStatement::new("uuid", "SELECT $1", true).execute);
        assert!(one.execute.len() < "EXECUTE ".len() + 64, "the server would cut it off: {}", one.execute);
    }

    #[test]
    fn sessions_that_forget_it_are_not_asked_for_ever() {
        let kept = KeptStatement::new("text", "SELECT $1", true);
        for _ in 0..64 {
            kept.earn(-MISS);
            kept.earn(1);
        }
        assert!(kept.is_of_use(), "a pooler has many sessions");
        for _ in 0..64 {
            kept.earn(-MISS);
            kept.earn(1);
        }
        assert!(!kept.is_of_use());
        kept.earn(1);
        assert!(!kept.is_of_use());
    }
}
