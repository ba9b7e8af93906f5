//! What the store is asked for of one leased bucket.

use std::sync::Arc;

use admit::{Budget, Clock, Cost, Key, Standing, Timestamp};

use super::holding::Ask;
use super::table::Table;

/// What a take asks the store for of one bucket. Dropped without an answer, none is coming.
#[derive(Debug)]
pub(super) struct Asking {
    place: Place,
    /// Nothing once it is granted.
    ask: Option<Ask>,
    /// Whether the store was asked.
    sent: bool,
    /// What there is after the grant, as far as it is known here.
    left: f64,
}

/// One leased bucket, and the clock to go by.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) table: Arc<Table>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) key: Key,
    pub(super) budget: Budget,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("key", &self.key).field("budget", &self.budget).finish_non_exhaustive()
    }
}

impl Place {
    /// Takes spent tokens back, as far as they may be held.
    pub(super) fn give(&self, tokens: f64) {
        let local = self.clock.now();
        if self.table.with(&self.key, |holding| holding.give(tokens, self.budget, local)).is_none() {
            self.table.counts().lapsed(tokens);
        }
    }
}

impl Asking {
    pub(super) fn new(place: Place, ask: Ask) -> Self {
        Self { place, ask: Some(ask), sent: false, left: 0.0 }
    }

    /// What the store is asked for beyond the cost.
    pub(super) fn rest(&self) -> Cost {
        self.ask.as_ref().map_or(Cost::ZERO, |ask| ask.rest)
    }

    /// The store is asked now.
    pub(super) fn send(&mut self) {
        self.sent = true;
    }

    /// The store refused the take, and the bucket stood so; whether a slice of it was too much. From now on the store is asked
    /// for the cost alone.
    pub(super) fn refused(&mut self, standing: &Standing) -> bool {
        let Some(ask) = &mut self.ask else { return false };
        let is_short = standing.wait.is_some();
        let was_too_much = ask.is_slice() && is_short;
        let Place { table, key, .. } = &self.place;
        if was_too_much {
            table.counts().was_refused();
        }
        table.with(key, |holding| holding.refused(ask, standing.level, is_short));
        *ask = ask.alone();
        was_too_much
    }

    /// The store granted what it was asked for, and left this. Tells what there is, as far as it is known here.
    pub(super) fn landed(&mut self, left: f64, at: Timestamp) -> f64 {
        let Some(ask) = self.ask.take() else { return self.left };
        let Place { table, clock, key, budget } = &self.place;
        if ask.is_slice() {
            table.counts().took(ask.amount());
        }
        let local = clock.now();
        let held = table.with(key, |holding| {
            holding.land(&ask, left, at, local);
            holding.held(local)
        });
        if held.is_none() {
            table.counts().lapsed(ask.rest.tokens()); // It was evicted meanwhile.
        }
        self.left = (left + held.unwrap_or_default()).min(budget.burst().tokens());
        self.left
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let Some(ask) = self.ask.take() else { return };
        let Place { table, key, .. } = &self.place;
        if self.sent && ask.is_slice() {
            table.counts().had_no_answer(ask.amount());
        }
        table.with(key, |holding| holding.abandoned(&ask, self.sent));
    }
}
