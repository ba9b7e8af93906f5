//! The runs of a process: how many there may be, and who waits for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use admit::idempotency::RecordKey;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};

/// How many requests wait at once for others with their keys.
const MAX_WAITERS: usize = 1_024;

/// The keyed requests that run, and those that wait for them. Clones share them, and so do the layers that are given a clone
/// ([`IdempotencyLayer::runs`](crate::IdempotencyLayer::runs)): a service that exchanges its layers while it runs has one
/// bound for all of them, and one thing to wait for when it ends.
#[derive(Clone, Debug)]
pub struct Runs(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    permits: Arc<Semaphore>,
    max: u32,
    waiters: Semaphore,
    /// Each receiver wakes when the sender, which is the run's, is dropped. No larger than `max`.
    running: Mutex<HashMap<RecordKey, watch::Receiver<()>>>,
}

/// Leave for one run.
pub(crate) struct Permit {
    _permit: OwnedSemaphorePermit,
    runs: Runs,
}

/// A run under way. Those who wait for its key wake when it is dropped.
pub(crate) struct Running {
    key: RecordKey,
    permit: Permit,
    done: Option<watch::Sender<()>>,
}

impl Runs {
    /// How many keyed requests run at once, unless it is told otherwise.
    pub const DEFAULT_MAX: u32 = 1_024;

    /// Room for as many at once as `max`.
    pub fn new(max: u32) -> Self {
        let permits = Arc::new(Semaphore::new(max as usize));
        let waiters = Semaphore::new(MAX_WAITERS);
        Self(Arc::new(Shared { permits, max, waiters, running: Mutex::default() }))
    }

    /// Waits until none runs: for a shutdown that finishes what was begun, after the server stopped taking requests.
    pub async fn idle(&self) {
        drop(self.0.permits.acquire_many(self.0.max).await);
    }

    /// Leave for one more run, unless there are as many as may be.
    pub(crate) fn permit(&self) -> Option<Permit> {
        let permit = Arc::clone(&self.0.permits).try_acquire_owned().ok()?;
        Some(Permit { _permit: permit, runs: self.clone() })
    }

    /// A place among those that wait, unless all are taken.
    pub(crate) fn seat(&self) -> Option<SemaphorePermit<'_>> {
        self.0.waiters.try_acquire().ok()
    }

    /// Waits until the run of this key ends; for ever if none runs here.
    pub(crate) fn ended(&self, key: &RecordKey) -> impl Future<Output = ()> + Send + use<> {
        let receiver = self.lock().get(key).cloned();
        async move {
            match receiver {
                Some(mut receiver) => while receiver.changed().await.is_ok() {},
                None => std::future::pending().await,
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RecordKey, watch::Receiver<()>>> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Runs {
    fn default() -> Self {
        Self::new(Self::DEFAULT_MAX)
    }
}

impl Permit {
    /// Starts the run of a key.
    pub(crate) fn start(self, key: RecordKey) -> Running {
        let (done, receiver) = watch::channel(());
        self.runs.lock().insert(key, receiver);
        Running { key, permit: self, done: Some(done) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(done) = self.done.take() else { return };
        let mut running = self.permit.runs.lock();
        // After a lapsed lease a later run of the same key may stand there.
        if running.get(&self.key).is_some_and(|receiver| done.subscribe().same_channel(receiver)) {
            running.remove(&self.key);
        }
    }
}
