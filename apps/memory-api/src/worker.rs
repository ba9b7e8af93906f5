//! Makes the items of jobs searchable.
//!
//! One task in each process. It is woken when this process accepts a batch, and looks by itself once in a while for jobs
//! that others accepted, failed at or died with. Several processes on one database share the work.

use std::sync::Arc;
use std::time::Duration;

use admit::{Causes, TimeSource, Unavailable};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::storage::{ClaimedJob, Finish, Storage};

/// How often the worker looks without being woken.
const INTERVAL: Duration = Duration::from_secs(1);
/// How many jobs are claimed at once: some seconds of work at most, so that their leases hold.
const BATCH: u32 = 8;

/// What the worker works with.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) storage: Storage,
    pub(crate) time: TimeSource,
    pub(crate) lease: Duration,
    pub(crate) metrics: Metrics,
    pub(crate) wake: Arc<Notify>,
}

impl Worker {
    /// Works until it is stopped, and then finishes the jobs that it has claimed.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut was_available = true;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wake.notified() => {}
                _ = tick.tick() => {}
            }
            let worked = self.work(&stop).await;
            match (&worked, was_available) {
                (Err(error), true) => {
                    tracing::error!(error = %Causes(error), "the store is unavailable; jobs wait");
                }
                (Ok(()), false) => tracing::info!("the store is back; jobs go on"),
                _ => {}
            }
            was_available = worked.is_ok();
        }
    }

    /// Works until no job is due.
    async fn work(&self, stop: &CancellationToken) -> Result<(), Unavailable> {
        while !stop.is_cancelled() {
            let jobs = self.storage.claim_jobs(BATCH, self.lease, self.time.now()).await?;
            if jobs.is_empty() {
                break;
            }
            // One job that the store cannot finish in time does not hold up those claimed with it.
            let mut finished = Ok(());
            for job in &jobs {
                finished = finished.and(self.finish(job).await);
            }
            finished?;
        }
        self.metrics.open_jobs(self.storage.open_jobs().await?);
        Ok(())
    }

    async fn finish(&self, job: &ClaimedJob) -> Result<(), Unavailable> {
        match self.storage.finish_job(job, self.time.now()).await? {
            Finish::Indexed(items) => {
                self.metrics.job("done", items);
                tracing::debug!(job = %job.id, items, "a job is done");
            }
            Finish::ClaimLost => {
                self.metrics.job("claim_lost", 0);
                tracing::warn!(job = %job.id, "the lease of a job lapsed before it was done; another has it");
            }
            Finish::Rejected => {
                self.metrics.job("failed", 0);
                self.storage.fail_job(job, self.time.now()).await?;
            }
        }
        Ok(())
    }
}
