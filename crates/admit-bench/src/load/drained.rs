//! Callers of a bucket that has nothing left.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use admit::{Budget, Key};
use anyhow::Result;
use tokio::runtime::Handle;

use super::callers::{Until, ask};
use super::limiter::{Limiter, tight};
use crate::case::{Accuracy, Side};

/// What the bucket had.
pub(crate) const BURST: u64 = 1_000;

/// Callers that are all refused.
pub(crate) struct Drained<L> {
    limiter: L,
    callers: usize,
    bucket: Arc<[Key]>,
    budget: Budget,
    runtime: Handle,
    /// Of all requests since the bucket was full.
    granted: Cell<u64>,
}

impl<L: Limiter> Drained<L> {
    /// Drains the bucket.
    pub(crate) fn new(limiter: L, callers: usize, bucket: Key, runtime: &Handle) -> Result<Self> {
        let (bucket, budget) = (Arc::from([bucket]), tight(BURST)?);
        let draining = ask(&limiter, callers, &bucket, budget, 0, Until::Requests(BURST + callers as u64));
        let granted = Cell::new(runtime.block_on(draining)?.granted);
        Ok(Self { limiter, callers, bucket, budget, runtime: runtime.clone(), granted })
    }
}

impl<L: Limiter> Side for Drained<L> {
    fn run(&self, time: Duration) -> Result<Vec<f64>> {
        let asking = ask(&self.limiter, self.callers, &self.bucket, self.budget, 0, Until::Time(time));
        let done = self.runtime.block_on(asking)?;
        self.granted.set(self.granted.get() + done.granted);
        Ok(vec![done.per_second()])
    }

    fn accuracy(&self) -> Result<Option<Accuracy>> {
        Ok(Some(Accuracy { admitted: self.granted.get(), allowed: BURST }))
    }
}
