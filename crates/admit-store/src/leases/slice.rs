//! A slice that was debited, and what may be held of it: the arithmetic of [`holding`](super::holding), which has the proof.

use admit::{Budget, Timestamp};

use super::holding::Moment;

/// How much faster the store's clock may run than the one of this process. Daemons that correct a clock speed it up or slow
/// it down by up to a twelfth, so two clocks drift apart by less than this. More than needed costs little: tokens that would
/// soon have run over the edge lapse a little earlier.
pub(super) const DRIFT: f64 = 1.25;

/// A slice, with what was written down of its debit: its anchor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    /// What was left in the bucket after the debit.
    pub(super) left: f64,
    /// When the store was asked for it.
    pub(super) since: Timestamp,
    /// When it was debited, by the store's clock.
    pub(super) at: Timestamp,
    pub(super) held: f64,
    /// What was spent, of this slice or of what was debited later; refunds deducted.
    pub(super) spent: f64,
    /// Whether it was more than was needed.
    pub(super) is_ahead: bool,
    /// Whether the size of the next one follows from it already.
    pub(super) judged: bool,
}

impl Slice {
    /// The most that may be held under its anchor.
    pub(super) fn room(&self, budget: Budget, now: Moment) -> f64 {
        let mut elapsed = (now.at.unix_micros() - self.since.unix_micros()).max(0) as f64;
        if !now.given {
            elapsed = (elapsed + 1.0) * DRIFT; // The clock's readings are cut to whole microseconds.
        }
        let refilled = elapsed / 1e6 * budget.rate().tokens_per_second();
        (budget.burst().tokens() - self.left - refilled).max(0.0)
    }

    /// What there would be if nobody else took anything.
    pub(super) fn known(&self, budget: Budget, now: Timestamp) -> f64 {
        let refilled = now.since(self.since).as_micros() as f64 / 1e6 * budget.rate().tokens_per_second();
        (self.left + refilled + self.held).min(budget.burst().tokens())
    }
}
