//! Something that happens once, and that any number of callers wait for.

use std::sync::Arc;
use std::time::Duration;

use admit::Timestamp;
use tokio::runtime::{Handle, Id};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How old a latch of another runtime may be for somebody to wait for it: nobody may be running that any more.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// Opens once. A caller that begins to wait after that does not wait.
#[derive(Clone, Debug)]
pub(super) struct Latch(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    opened: Semaphore,
    /// Who runs the task that opens it.
    runtime: Option<Id>,
    made: Timestamp,
}

impl Latch {
    /// To be opened by a task of the caller's runtime.
    pub(super) fn new(now: Timestamp) -> Self {
        Self(Arc::new(Inner { opened: Semaphore::new(0), runtime: runtime(), made: now }))
    }

    /// Whether it is to be expected that it opens soon. One of another runtime is expected of nobody once it is late, whoever
    /// waited for it, and for how long.
    pub(super) fn is_expected(&self, now: Timestamp) -> bool {
        self.is_near() || !self.patience(now).is_zero()
    }

    fn is_near(&self) -> bool {
        self.0.runtime.is_some() && self.0.runtime == runtime()
    }

    fn patience(&self, now: Timestamp) -> Duration {
        PATIENCE.saturating_sub(now.since(self.0.made))
    }

    pub(super) fn open(&self) {
        self.0.opened.close();
    }

    /// Waits until it is open; if another runtime opens it, until it is late, and for so long at most.
    pub(super) async fn opened(&self, now: Timestamp, at_most: Duration) {
        let opened = self.0.opened.acquire(); // There is no permit: it ends when the semaphore is closed.
        match self.is_near() {
            true => drop(opened.await),
            false => drop(timeout(at_most.min(self.patience(now)), opened).await),
        }
    }
}

fn runtime() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}
