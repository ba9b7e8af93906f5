//! Deletes jobs that were finished long ago.

use std::time::Duration;

use admit::{Causes, TimeSource};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::storage::Storage;

/// How often. Several processes may do it at once: each deletes what is left.
const INTERVAL: Duration = Duration::from_secs(3_600);

/// Trims at the start and then hourly, until it is stopped.
pub(crate) async fn trim(storage: Storage, time: TimeSource, retention: Duration, stop: CancellationToken) {
    let mut tick = interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        match storage.trim_jobs(retention, time.now()).await {
            Ok(0) => {}
            Ok(jobs) => tracing::info!(jobs, "old jobs are deleted"),
            Err(error) => {
                tracing::warn!(error = %Causes(&error), "old jobs could not be deleted; the next try is in an hour");
            }
        }
    }
}
