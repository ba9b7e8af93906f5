//! What a process holds of one bucket, and how long it may. Pure: the moment is an argument, nothing waits, nothing is locked.
//!
//! # Why holding does not break the law
//!
//! Write `L` for the level of the bucket in the store, `h` for what a process holds of it, `b` for its burst and `r` for its
//! rate. What can be granted at an instant is `P`, the sum of `L` and of all that is held. A debit for a slice moves tokens
//! from `L` to an `h`, a grant lowers `P`, and nothing but the refill raises it, by no more than `r·t` in a time `t`. So if
//! `P ≤ b` at every instant, then in every window of length `t` at most `b + r·t` is granted, which is the law.
//!
//! `P ≤ b` does not hold by itself: a refill stops at the burst, and a bucket does not know what is held of it. So a
//! process drops what might be too much. Of each slice it remembers its **anchor**: what was `left` in the bucket right
//! after the debit, and `since` when, by its own clock, read before the store was asked. From then on
//!
//! ```text
//! L + (all slices that were debited later, by whomever)  ≤  left + r·(t − since)
//! ```
//!
//! because a later slice comes out of that `L`, grants lower the sum, and the refill raises it by `r` at most. The process
//! holds no more than what is wanting to the burst:
//!
//! ```text
//! h  ≤  room  =  b − left − r·(t − since)
//! ```
//!
//! At any instant take, of the slices that are held, the one that was debited first. Every other one was debited later, so
//! `P` is its `h` and the left side above, and that is at most `b`. Who held slices before it holds them no more. No process
//! needs to know of any other. What is dropped would have run over the edge of a full bucket, had nobody else taken from it.
//!
//! # What must not happen to a slice
//!
//! The argument stands on this: nothing enters `L` but the refill. So a slice is **not given back to the store**. With a
//! burst of 100, let one process hold 50 and another debit 10 after that: `left` is 40, and it may hold its 10 until some 50
//! tokens are refilled. If the first one now gave its 50 back, the bucket would be full ten tokens before that, with ten
//! held beside it. The second cannot know. Only the slice that was debited last could be given back, and no process knows
//! whether its own is; so what is not spent lapses where it is. For the same reason a refund of a grant stays here, and the
//! tokens that are given back are at most those that were spent since the anchor: they were in the sum above when it was
//! written down.
//!
//! A **store** may give back by itself what it granted to a caller that has gone. That would enter `L` too, so it is asked in
//! a way in which it does not ([`Lessor`](super::Lessor)).
//!
//! And a slice is **not set aside** for a take while the store is asked for the rest: what is set aside cannot lapse. What is
//! held covers a take, or is left alone.
//!
//! # Clocks
//!
//! The refill goes by the store's clock, and `t − since` by the one of this process, so it is counted as `DRIFT` times as
//! long. A step of the store's clock is not seen here.

use admit::{Budget, Cost, Timestamp};

use super::demand::Demand;
use super::latch::Latch;
use super::slice::Slice;

/// When something is decided, and by which clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) at: Timestamp,
    /// Whether the caller brought it.
    pub(super) given: bool,
}

/// What is held of one bucket.
#[derive(Debug)]
pub(super) struct Holding {
    budget: Budget,
    given: bool,
    /// The last moment there was: it never moves back.
    latest: Timestamp,
    slice: Option<Slice>,
    /// Another one makes what is on its way worthless.
    epoch: Epoch,
    /// How many anchors there were.
    anchors: u64,
    demand: Demand,
    /// Opens when the slice that is on its way is here or is not coming.
    flight: Option<Latch>,
    /// What lapsed since it was last asked.
    lapsed: f64,
}

/// Which of the holdings of a process it is, and how often it began anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Epoch {
    holding: u64,
    beginnings: u64,
}

/// A grant that needed no store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spent {
    /// What there is, as far as it is known here.
    pub(super) left: f64,
    /// When, by the store's clock as far as it is known here.
    pub(super) at: Timestamp,
}

/// What the store is asked for.
#[derive(Debug)]
pub(super) struct Ask {
    /// What the caller needs.
    pub(super) cost: f64,
    /// What to ask for beyond that, and what is held of it once the cost is spent: one number for both, so that no more can be
    /// held than was asked for.
    pub(super) rest: Cost,
    /// The most that it could have been.
    most: f64,
    since: Timestamp,
    epoch: Epoch,
    anchors: u64,
}

impl Ask {
    /// The same for the cost alone.
    pub(super) fn alone(&self) -> Self {
        Self { rest: Cost::ZERO, ..*self }
    }

    /// Whether it is for more than the cost.
    pub(super) fn is_slice(&self) -> bool {
        !self.rest.is_zero()
    }

    /// All that is asked for.
    pub(super) fn amount(&self) -> f64 {
        self.cost + self.rest.tokens()
    }
}

/// What a caller may do for a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effort {
    /// It asks for its cost alone.
    None,
    /// It asks for a slice, unless one is on its way.
    Ask,
    /// It waits for one that is on its way, too.
    Wait,
}

#[derive(Debug)]
pub(super) enum Begun {
    /// A slice is on its way.
    Wait(Latch),
    /// The store has to be asked.
    Ask(Ask),
}

impl Holding {
    /// Nothing is held yet. No other holding of the process has this number.
    pub(super) fn new(number: u64, budget: Budget, moment: Moment) -> Self {
        Self {
            budget,
            given: moment.given,
            latest: moment.at,
            slice: None,
            epoch: Epoch { holding: number, beginnings: 0 },
            anchors: 0,
            demand: Demand::new(),
            flight: None,
            lapsed: 0.0,
        }
    }

    /// Grants `cost` from what is held, if that covers it.
    pub(super) fn spend(&mut self, cost: f64, budget: Budget, moment: Moment) -> Option<Spent> {
        self.settle(budget, moment);
        let slice = self.slice.as_mut().filter(|slice| slice.held >= cost)?;
        slice.held -= cost;
        slice.spent += cost;
        let slice = *slice;
        Some(Spent {
            left: slice.known(self.budget, self.latest),
            at: slice.at.saturating_add(self.latest.since(slice.since)),
        })
    }

    /// Tells what to ask the store for, where not all of a take is held. `most` is the most that may be held.
    pub(super) fn begin(
        &mut self,
        cost: f64,
        budget: Budget,
        moment: Moment,
        most: f64,
        effort: Effort,
    ) -> Begun {
        self.settle(budget, moment);
        let is_held = self.slice.is_some_and(|slice| slice.held >= cost);
        let mut rest = Cost::ZERO;
        if !is_held && effort > Effort::None {
            match &self.flight {
                Some(flight) if effort == Effort::Wait && flight.is_expected(self.latest) => {
                    self.demand.waits(cost);
                    return Begun::Wait(flight.clone());
                }
                Some(_) => {}
                None => {
                    self.judge();
                    rest = self.demand.next(cost, most, self.budget, self.latest);
                }
            }
        }
        if !rest.is_zero() {
            self.flight = Some(Latch::new(self.latest));
        }
        let (epoch, anchors) = (self.epoch, self.anchors);
        Begun::Ask(Ask { cost, rest, most, since: moment.at, epoch, anchors })
    }

    /// Learns from a slice that is used up, once.
    fn judge(&mut self) {
        if let Some(slice) = self.slice.as_mut().filter(|slice| !slice.judged) {
            slice.judged = true;
            self.demand.used_up(self.latest.since(slice.since), slice.is_ahead);
        }
    }

    /// The store granted what was asked for, and `left` this. `at` is by its clock.
    /// `local` is by the clock of this process.
    pub(super) fn land(&mut self, ask: &Ask, left: f64, at: Timestamp, local: Timestamp) {
        let rest = ask.rest.tokens();
        if ask.epoch != self.epoch {
            self.lapsed += rest;
            return;
        }
        self.end_flight(ask);
        self.lapse(self.by(local));
        self.demand.told(left + ask.amount(), left, self.budget, ask.since, self.latest);
        let (is_ahead, judged) = (rest > 0.0, false);
        let new = Slice { left, since: ask.since, at, held: rest, spent: ask.cost, is_ahead, judged };
        let room = self.slice.map_or(0.0, |slice| self.room(&slice));
        // That the store was asked after the answer to the anchor's debit tells that this one was debited later.
        let is_later = ask.anchors == self.anchors;
        match &mut self.slice {
            Some(slice) if slice.held > 0.0 || rest == 0.0 && room >= slice.spent + ask.cost => {
                // One anchor for both. Under that of the later debit what is held of the earlier would not count.
                let kept = if is_later { rest.min(room - slice.held).max(0.0) } else { 0.0 };
                if rest - kept > slice.held {
                    self.lapsed += slice.held;
                    self.slice = Some(new);
                    self.anchors += 1;
                } else {
                    self.lapsed += rest - kept;
                    slice.held += kept;
                    if is_later {
                        slice.spent += ask.cost;
                    }
                }
            }
            _ => {
                self.slice = Some(new);
                self.anchors += 1;
            }
        }
        self.lapse(None);
        let is_too_late = is_ahead && self.slice.is_none_or(|slice| slice.held < rest / 2.0);
        if is_too_late && !self.demand.asks_for_more(ask.amount(), ask.most) {
            self.demand.pause(self.latest); // The bucket fills in the time that the store takes to answer.
        }
    }

    /// The store refused the take, and the bucket held `level`; `is_short` if that was too little for what was asked for.
    pub(super) fn refused(&mut self, ask: &Ask, level: Option<f64>, is_short: bool) {
        if ask.epoch != self.epoch {
            return;
        }
        self.end_flight(ask);
        self.demand.refused(level, ask.since);
        if ask.is_slice() && is_short {
            self.demand.pause(self.latest);
        }
    }

    /// There is no answer, or the store was not asked after all.
    pub(super) fn abandoned(&mut self, ask: &Ask, sent: bool) {
        let paused = sent && ask.is_slice() && ask.epoch == self.epoch;
        self.end_flight(ask);
        if paused {
            self.demand.pause(self.latest);
        }
    }

    /// What was asked for is here, or is not coming.
    fn end_flight(&mut self, ask: &Ask) {
        if ask.is_slice()
            && ask.epoch == self.epoch
            && let Some(flight) = self.flight.take()
        {
            flight.open();
            self.demand.arrived();
        }
    }

    /// Takes tokens back that were spent, as far as they may be held; the rest lapses.
    pub(super) fn give(&mut self, tokens: f64, budget: Budget, local: Timestamp) {
        self.lapse(self.by(local));
        let room = self.slice.map_or(0.0, |slice| self.room(&slice) - slice.held);
        let kept = match &mut self.slice {
            Some(slice) if self.budget == budget => {
                let kept = tokens.min(slice.spent).min(room).max(0.0);
                slice.held += kept;
                slice.spent -= kept;
                kept
            }
            _ => 0.0,
        };
        self.lapsed += tokens - kept;
    }

    /// What is held, and what there is, as far as it is known here.
    pub(super) fn look(&mut self, budget: Budget, moment: Moment) -> (f64, f64) {
        if self.budget != budget || self.given != moment.given {
            return (0.0, 0.0); // A look changes nothing.
        }
        self.lapse(Some(moment.at));
        self.slice.map_or((0.0, 0.0), |slice| (slice.held, slice.known(self.budget, self.latest)))
    }

    /// What is held now.
    pub(super) fn held(&mut self, local: Timestamp) -> f64 {
        self.lapse(self.by(local));
        self.slice.map_or(0.0, |slice| slice.held)
    }

    /// Whether nothing is lost when this is dropped, but for its memory of sizes.
    pub(super) fn is_spare(&self) -> bool {
        !self.is_awaited() && self.slice.is_none_or(|slice| slice.held == 0.0)
    }

    /// Whether somebody will come back to it.
    pub(super) fn is_awaited(&self) -> bool {
        self.flight.is_some()
    }

    /// Drops what is held.
    pub(super) fn drop_all(&mut self) {
        self.lapsed += self.slice.take().map_or(0.0, |slice| slice.held);
        self.epoch.beginnings += 1;
        self.demand = Demand::new();
        if let Some(flight) = self.flight.take() {
            flight.open();
        }
    }

    /// What lapsed since it was last asked.
    pub(super) fn take_lapsed(&mut self) -> f64 {
        std::mem::take(&mut self.lapsed)
    }

    /// Under another budget, or by another clock, what was written down means nothing.
    fn settle(&mut self, budget: Budget, moment: Moment) {
        if self.budget != budget || self.given != moment.given {
            self.drop_all();
            (self.budget, self.given, self.latest) = (budget, moment.given, moment.at);
        }
        self.lapse(Some(moment.at));
    }

    /// A moment of this process means nothing where callers bring theirs.
    fn by(&self, local: Timestamp) -> Option<Timestamp> {
        (!self.given).then_some(local)
    }

    /// Drops what may not be held any more.
    fn lapse(&mut self, now: Option<Timestamp>) {
        self.latest = self.latest.max(now.unwrap_or(self.latest));
        let Some(slice) = self.slice else { return };
        let room = self.room(&slice);
        if slice.held > room {
            self.lapsed += slice.held - room;
            if !slice.judged {
                self.demand.lapsed(); // It was more than was needed.
            }
            self.slice = (room > 0.0).then_some(Slice { held: room, judged: true, ..slice });
        }
    }

    fn room(&self, slice: &Slice) -> f64 {
        slice.room(self.budget, Moment { at: self.latest, given: self.given })
    }
}
