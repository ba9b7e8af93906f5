//! The drive while a batch is settled, in one statement or in two at once.

use std::sync::{Mutex, PoisonError};

use super::super::queue::Drive;

/// The drive, and how many statements the queue waits for.
pub(super) struct Turn<'d>(Mutex<(usize, &'d mut Option<Drive>)>);

impl<'d> Turn<'d> {
    pub(super) fn of(statements: usize, drive: &'d mut Option<Drive>) -> Self {
        Self(Mutex::new((statements, drive)))
    }

    /// The queue need not wait for one of them. Gives the drive where it waits for no other.
    pub(super) fn leave(&self) -> Option<Drive> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = state.0.saturating_sub(1);
        if state.0 == 0 { state.1.take() } else { None }
    }
}
