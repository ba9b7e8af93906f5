//! Keeps the lease of a run while the run lasts.

use std::time::Duration;

use admit::idempotency::{Terms, Ticket};
use admit::{Causes, IdempotencyError, IdempotencyStore, TimeSource};
use tokio::sync::oneshot;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tracing::{Instrument, Span, debug, warn};

/// A lease that is renewed until this is dropped.
///
/// Renewals are a task of their own, so that a slow one holds no response back. One that is under way when the run ends
/// is finished rather than dropped, which would leave a connection of the store busy; its fence keeps it from touching
/// what came after.
pub(crate) struct Kept {
    _running: oneshot::Sender<()>,
}

/// How often a lease is renewed, and how long the store may take for it, so that an answer comes before the lease ends.
///
/// Both are counted from the moment at which the lease is asked for: a claim has two thirds of it, unless the store's time
/// limit is shorter, and the renewal that is due a third after it was asked for has the last one. So it does not take a
/// lease longer than that limit for a run to keep it.
pub(crate) struct Renewals {
    ticks: Interval,
    third: Duration,
    lease: Duration,
    store_time_limit: Duration,
}

/// The store did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error(
    "no answer within {limit:?}, what a lease of {lease:?} and a store time limit of {store_time_limit:?} leave for it; \
     lengthen the shorter of the two"
)]
pub(crate) struct TooSlow {
    limit: Duration,
    lease: Duration,
    store_time_limit: Duration,
}

impl Renewals {
    /// To be made just before the claim.
    pub(crate) async fn from_now(lease: Duration, store_time_limit: Duration) -> Self {
        let third = lease / 3;
        let mut ticks = interval(third.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await; // The first comes at once.
        Self { ticks, third, lease, store_time_limit }
    }

    /// Waits for the claim, as long as makes sense.
    pub(crate) async fn claimed<T>(&self, claim: impl Future<Output = T>) -> Result<T, TooSlow> {
        self.within(self.third * 2, claim).await
    }

    async fn within<T>(&self, limit: Duration, asked: impl Future<Output = T>) -> Result<T, TooSlow> {
        let Self { lease, store_time_limit, .. } = *self;
        let limit = limit.min(store_time_limit);
        timeout(limit, asked).await.map_err(|_| TooSlow { limit, lease, store_time_limit })
    }

    /// Renews the lease of a claim, once at a time.
    pub(crate) fn keep<S: IdempotencyStore>(
        mut self,
        store: S,
        ticket: Ticket,
        terms: Terms,
        time: TimeSource,
    ) -> Kept {
        let (running, mut ended) = oneshot::channel();
        let renewals = async move {
            loop {
                tokio::select! {
                    biased;
                    _ = &mut ended => return,
                    _ = self.ticks.tick() => {}
                }
                let renewed = self.within(self.third, store.renew(&ticket, &terms, time.now())).await;
                let cause: &dyn std::error::Error = match &renewed {
                    Ok(Ok(_)) => continue,
                    // The handler may have recorded its response and be on its way back, so that this alone is no alarm.
                    Ok(Err(IdempotencyError::TicketLost)) => {
                        debug!("a run's lease can no longer be renewed");
                        return;
                    }
                    Ok(Err(IdempotencyError::Unavailable(cause))) => cause,
                    Err(too_slow) => too_slow,
                };
                warn!(error = %Causes(cause), "a run's lease was not renewed");
            }
        };
        tokio::spawn(renewals.instrument(Span::current()));
        Kept { _running: running }
    }
}
