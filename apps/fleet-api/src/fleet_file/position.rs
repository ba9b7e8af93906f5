//! Where in a text something stands.

use super::FleetFileError;

/// A line and a column, counted from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    line: usize,
    column: usize,
}

impl Position {
    /// The position of a byte of a text.
    pub(super) fn of(byte: usize, text: &str) -> Self {
        let before = text.get(..byte).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
    }

    /// What is wrong there.
    pub(super) fn wrong(self, what: impl Into<String>) -> FleetFileError {
        FleetFileError::Wrong { line: self.line, column: self.column, what: what.into() }
    }
}
