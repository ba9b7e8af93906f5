//! Something that happens once, and that any number of callers wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Opens once. A caller that begins to wait after that does not wait.
#[derive(Clone, Debug)]
pub(super) struct Latch(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    opened: Semaphore,
    /// Who runs the task that opens it.
    runtime: Option<Id>,
    /// Whether somebody of another runtime has waited in vain.
    is_late: AtomicBool,
}

impl Latch {
    /// To be opened by a task of the caller's runtime.
    pub(super) fn new() -> Self {
        let is_late = AtomicBool::new(false);
        Self(Arc::new(Inner { opened: Semaphore::new(0), runtime: runtime(), is_late }))
    }

    /// Whether it is to be expected that it opens soon. Another runtime than the caller's may be one that nobody runs any more:
    /// once its latch was late, it is expected of no other.
    pub(super) fn is_expected(&self) -> bool {
        self.is_near() || !self.0.is_late.load(Ordering::Relaxed)
    }

    fn is_near(&self) -> bool {
        self.0.runtime.is_some() && self.0.runtime == runtime()
    }

    pub(super) fn open(&self) {
        self.0.opened.close();
    }

    /// Waits until it is open, for so long at most if another runtime opens it.
    pub(super) async fn opened(&self, at_most: Duration) {
        let opened = self.0.opened.acquire(); // There is no permit: it ends when the semaphore is closed.
        if self.is_near() {
            let _ = opened.await;
        } else if timeout(at_most, opened).await.is_err() {
            self.0.is_late.store(true, Ordering::Relaxed);
        }
    }
}

fn runtime() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}
