//! Writes what a run came to, also where the store is away when it ends.
//!
//! The client has its response after the first attempt, whatever that came to, so that a store that is away
//! holds no response back for longer than its time limit. A task goes on from there: without it, one outage
//! of a second would let a run lapse that has long been answered, and a retry would run again.

use std::time::Duration;

use admit::idempotency::{Claim, Outcome, Ticket};
use admit::{Causes, IdempotencyError, IdempotencyStore, Unavailable};
use backon::{ExponentialBuilder, Retryable};
use tokio::time::timeout;
use tracing::{Instrument, error, info, warn};

use crate::detached::Detached;
use crate::lease::Kept;
use crate::observe::Keyed;
use crate::runs::Running;

/// How long it waits before it asks a store again that was away: soon at first, as most outages are a
/// connection that broke.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// And no longer than this, however long the store is away. A thousand runs then ask it no more than a
/// thousand times a second.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// What is to become of the record of a run that has ended.
#[derive(Debug)]
pub(crate) enum Ending {
    Complete(Outcome),
    Release,
}

impl Ending {
    fn told(&self) -> Keyed {
        match self {
            Self::Complete(Outcome::Response(_)) => Keyed::Completed,
            Self::Complete(Outcome::Tombstone { .. }) => Keyed::Tombstoned,
            Self::Release => Keyed::Released,
        }
    }
}

/// A run that has ended, and whose record is to be settled.
pub(crate) struct Settling<S> {
    pub(crate) run: Detached<S>,
    pub(crate) ticket: Ticket,
    pub(crate) ending: Ending,
}

impl<S: IdempotencyStore> Settling<S> {
    /// Returns when the record is settled, or the store was unavailable, in which case a task of its own goes
    /// on with it. The run keeps its place until then, which bounds those tasks, and which a shutdown waits
    /// for.
    pub(crate) async fn settle(self, running: Running, kept: Kept) {
        match self.write().await {
            Ok(()) => self.run.tell(self.ending.told()),
            Err(lost @ IdempotencyError::TicketLost) => self.failed(&lost),
            Err(IdempotencyError::Unavailable(cause)) => {
                warn!(
                    correlation_id = %self.run.correlation_id, error = %Causes(&cause),
                    "a request ran, and its record could not be settled yet; trying again until its lease has lapsed"
                );
                // Not renewed any more, so that there is an end to it. A store that renews could as well
                // settle.
                drop(kept);
                let go_on = async move {
                    self.go_on().await;
                    drop(running);
                };
                tokio::spawn(go_on.in_current_span());
            }
        }
    }

    /// Tries until the store answers, or the lease has surely lapsed: the last renewal was asked for before
    /// this, and reached the store within its time limit or never.
    async fn go_on(&self) {
        let waits = ExponentialBuilder::default()
            .with_min_delay(FIRST_WAIT)
            .with_max_delay(LONGEST_WAIT)
            .without_max_times()
            .with_jitter();
        let write = || self.write_again();
        let written = write.retry(waits).when(|error| matches!(error, IdempotencyError::Unavailable(_)));
        let lapse = self.run.terms.lease.saturating_add(self.run.store_time_limit);
        match timeout(lapse, written).await {
            Ok(Ok(())) => {
                info!(correlation_id = %self.run.correlation_id, outcome = %self.ending.told(), "its record is settled");
                self.run.tell(self.ending.told());
            }
            Ok(Err(error)) => self.failed(&error),
            Err(elapsed) => self.failed(&elapsed),
        }
    }

    fn failed(&self, error: &dyn std::error::Error) {
        error!(
            correlation_id = %self.run.correlation_id, error = %Causes(error), outcome = %self.ending.told(),
            "a request ran, but its record could not be settled before its lease lapsed"
        );
        self.run.tell(Keyed::Unrecorded);
    }

    async fn write(&self) -> Result<(), IdempotencyError> {
        let (store, ticket, now) = (&self.run.store, &self.ticket, self.run.time.now());
        match &self.ending {
            Ending::Complete(outcome) => {
                self.in_time(store.complete(ticket, outcome, &self.run.terms, now)).await
            }
            Ending::Release => self.in_time(store.release(ticket, now)).await,
        }
    }

    /// What was asked for before may have been done without an answer, and the ticket is lost then too.
    async fn write_again(&self) -> Result<(), IdempotencyError> {
        match self.write().await {
            Err(IdempotencyError::TicketLost) if self.is_there().await? => Ok(()),
            result => result,
        }
    }

    /// Whether the record says what it should.
    async fn is_there(&self) -> Result<bool, IdempotencyError> {
        let (run, key) = (&self.run, &self.run.key);
        let look = run.store.look(&key.record, &key.fingerprint, &run.terms, run.time.now());
        let seen = self.in_time(async { Ok(look.await?) }).await?;
        Ok(match &self.ending {
            Ending::Complete(outcome) => matches!(seen, Some(Claim::Done(there)) if there == *outcome),
            Ending::Release => !matches!(seen, Some(Claim::Blocked)), // Free, or another's by now.
        })
    }

    async fn in_time<T>(
        &self,
        asked: impl Future<Output = Result<T, IdempotencyError>>,
    ) -> Result<T, IdempotencyError> {
        let late = |elapsed| Err(Unavailable::timed_out("idempotency", elapsed).into());
        timeout(self.run.store_time_limit, asked).await.unwrap_or_else(late)
    }
}
