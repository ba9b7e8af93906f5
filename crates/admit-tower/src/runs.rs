//! The runs of this process: how many there may be, and who waits for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use admit::idempotency::RecordKey;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The runs under way in this process.
#[derive(Debug)]
pub(crate) struct Runs {
    permits: Arc<Semaphore>,
    max: u32,
    /// Each receiver wakes when the sender, which is the run's, is dropped. No larger than `max`.
    running: Mutex<HashMap<RecordKey, watch::Receiver<()>>>,
}

/// Leave for one run.
pub(crate) struct Permit {
    _permit: OwnedSemaphorePermit,
    runs: Arc<Runs>,
}

/// A run under way. Those who wait for its key wake when it is dropped.
pub(crate) struct Running {
    key: RecordKey,
    permit: Permit,
    done: Option<watch::Sender<()>>,
}

impl Runs {
    pub(crate) fn new(max: u32) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(max as usize));
        Arc::new(Self { permits, max, running: Mutex::default() })
    }

    /// Leave for one more run, unless there are as many as may be.
    pub(crate) fn permit(self: &Arc<Self>) -> Option<Permit> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some(Permit { _permit: permit, runs: Arc::clone(self) })
    }

    /// Waits until there is no run.
    pub(crate) async fn idle(&self) {
        drop(self.permits.acquire_many(self.max).await);
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
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
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
