//! What a take has set aside of one bucket until it is decided.

use std::sync::Arc;

use admit::{Budget, Clock, Key, Timestamp};

use super::holding::Ask;
use super::table::Table;

/// Tokens of one bucket that are set aside for a take. Dropped, they are put back: the take was refused, failed, or its
/// caller has gone.
#[derive(Debug)]
pub(super) struct Reserved {
    place: Place,
    /// What was held and is set aside.
    tokens: f64,
    /// What the store has to be asked for beside that.
    ask: Option<Ask>,
    /// Whether the store has to be asked, or was.
    asked: bool,
    /// Whether it was.
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

impl Reserved {
    pub(super) fn spent(place: Place, tokens: f64, left: f64) -> Self {
        Self { place, tokens, ask: None, asked: false, sent: false, left }
    }

    pub(super) fn asking(place: Place, ask: Ask) -> Self {
        Self { place, tokens: ask.reserved, ask: Some(ask), asked: true, sent: false, left: 0.0 }
    }

    /// What there is after the grant, as far as it is known here.
    pub(super) fn left(&self) -> f64 {
        self.left
    }

    /// What the bucket holds, if it holds so much in the store.
    pub(super) fn level(&self, in_store: f64) -> f64 {
        (in_store + self.tokens).min(self.place.budget.burst().tokens())
    }

    /// What the store has to be asked for beside what is held; nothing if it need not be.
    pub(super) fn amount(&self) -> Option<f64> {
        self.ask.as_ref().map(|ask| ask.amount)
    }

    /// Whether the store has to be asked, or was.
    pub(super) fn was_asked(&self) -> bool {
        self.asked
    }

    /// The store is asked now.
    pub(super) fn send(&mut self) {
        self.sent = true;
    }

    pub(super) fn is_slice(&self) -> bool {
        self.ask.as_ref().is_some_and(Ask::is_slice)
    }

    /// The store refused the take, and the bucket held `level`. From now on it is asked for what is wanting and no more.
    pub(super) fn refused(&mut self, level: Option<f64>) {
        let Some(ask) = &mut self.ask else { return };
        if ask.is_slice() {
            self.place.table.counts().was_refused();
        }
        self.place.table.with(&self.place.key, |holding| holding.refused(ask, level));
        *ask = ask.alone();
    }

    /// The store granted what it was asked for, and left this.
    pub(super) fn landed(&mut self, left: f64, at: Timestamp) {
        let Some(ask) = self.ask.take() else { return };
        let Place { table, clock, key, budget } = &self.place;
        if ask.is_slice() {
            table.counts().took(ask.amount);
        }
        self.tokens += ask.shortage;
        let local = clock.now();
        let held = table.with(key, |holding| {
            holding.land(&ask, left, at, local);
            holding.held(local)
        });
        if held.is_none() {
            table.counts().lapsed(ask.amount - ask.shortage); // It was evicted meanwhile.
        }
        self.left = (left + held.unwrap_or_default()).min(budget.burst().tokens());
    }

    /// The take was granted, and its caller knows.
    pub(super) fn keep(mut self) {
        self.tokens = 0.0;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(ask) = self.ask.take() {
            if self.sent && ask.is_slice() {
                self.place.table.counts().had_no_answer();
            }
            self.place.table.with(&self.place.key, |holding| holding.abandoned(&ask, self.sent));
        }
        if self.tokens > 0.0 {
            self.place.give(self.tokens);
        }
    }
}
