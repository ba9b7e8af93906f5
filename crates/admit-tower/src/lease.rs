//! Keeps the lease of a run while the run lasts.

use std::time::Duration;

use admit::idempotency::{Terms, Ticket};
use admit::{IdempotencyError, IdempotencyStore, TimeSource};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{Instrument, Span, debug, warn};

/// A lease that is renewed until this is dropped.
///
/// Renewals are a task of their own, so that a slow one holds no response back. One that is under way when the run ends
/// is finished rather than dropped, which would leave a connection of the store busy; its fence keeps it from touching
/// what came after.
pub(crate) struct Kept {
    _running: oneshot::Sender<()>,
}

/// Renews the lease three times in its length. Each renewal may take `time_limit`, and there is one at a time.
pub(crate) fn keep<S: IdempotencyStore>(
    store: S,
    ticket: Ticket,
    terms: Terms,
    time: TimeSource,
    time_limit: Duration,
) -> Kept {
    let (running, mut ended) = oneshot::channel();
    let renewals = async move {
        let mut ticks = interval((terms.lease / 3).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await; // The first comes at once.
        loop {
            tokio::select! {
                biased;
                _ = &mut ended => return,
                _ = ticks.tick() => {}
            }
            let renewed = timeout(time_limit, store.renew(&ticket, &terms, time.now())).await;
            let cause: &dyn std::error::Error = match &renewed {
                Ok(Ok(_)) => continue,
                // The handler may have recorded its response and be on its way back, so that this alone is no alarm.
                Ok(Err(IdempotencyError::TicketLost)) => {
                    debug!("a run's lease can no longer be renewed");
                    return;
                }
                Ok(Err(IdempotencyError::Unavailable(cause))) => cause,
                Err(elapsed) => elapsed,
            };
            warn!(error = cause, "a run's lease was not renewed");
        }
    };
    tokio::spawn(renewals.instrument(Span::current()));
    Kept { _running: running }
}
