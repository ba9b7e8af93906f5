//! What is counted of slices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What became of slices since the process began. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    taken: AtomicU64,
    refused: AtomicU64,
    unanswered: AtomicU64,
    /// A double, bit by bit.
    unanswered_tokens: AtomicU64,
    /// A double, bit by bit.
    taken_tokens: AtomicU64,
    /// A double, bit by bit.
    lapsed_tokens: AtomicU64,
}

impl Counts {
    /// Slices that the store granted.
    pub fn taken(&self) -> u64 {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// Slices that the store refused, after which it was asked for the cost alone.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Slices that had no answer.
    pub fn unanswered(&self) -> u64 {
        self.0.unanswered.load(Ordering::Relaxed)
    }

    /// The tokens of the slices that had no answer: what the store may have debited for nobody. It admits less by up to so much.
    pub fn unanswered_tokens(&self) -> f64 {
        f64::from_bits(self.0.unanswered_tokens.load(Ordering::Relaxed))
    }

    /// The tokens of the slices that the store granted.
    pub fn taken_tokens(&self) -> f64 {
        f64::from_bits(self.0.taken_tokens.load(Ordering::Relaxed))
    }

    /// Tokens that were debited and will not be spent: the bucket may have been full without them, its budget changed, its
    /// place was needed, or they were given back too late. It admits less by as much.
    pub fn lapsed_tokens(&self) -> f64 {
        f64::from_bits(self.0.lapsed_tokens.load(Ordering::Relaxed))
    }

    pub(super) fn took(&self, tokens: f64) {
        self.0.taken.fetch_add(1, Ordering::Relaxed);
        add(&self.0.taken_tokens, tokens);
    }

    pub(super) fn was_refused(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn had_no_answer(&self, tokens: f64) {
        self.0.unanswered.fetch_add(1, Ordering::Relaxed);
        add(&self.0.unanswered_tokens, tokens);
    }

    pub(super) fn lapsed(&self, tokens: f64) {
        if tokens > 0.0 {
            add(&self.0.lapsed_tokens, tokens);
        }
    }
}

fn add(sum: &AtomicU64, tokens: f64) {
    let add = |bits| Some((f64::from_bits(bits) + tokens).to_bits());
    let _ = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add); // Never declines.
}
