//! Something that happens once, and that any number of callers wait for.

use std::sync::Arc;

use tokio::runtime::{Handle, Id};
use tokio::sync::Semaphore;

/// Opens once. A caller that begins to wait after that does not wait.
#[derive(Clone, Debug)]
pub(super) struct Latch {
    opened: Arc<Semaphore>,
    /// Who runs the task that opens it.
    runtime: Option<Id>,
}

impl Latch {
    /// To be opened by a task of the caller's runtime.
    pub(super) fn new() -> Self {
        Self { opened: Arc::new(Semaphore::new(0)), runtime: runtime() }
    }

    /// Whether a task of the caller's own runtime opens it. Another runtime may be one that nobody runs any more.
    pub(super) fn is_near(&self) -> bool {
        self.runtime.is_some() && self.runtime == runtime()
    }

    pub(super) fn open(&self) {
        self.opened.close();
    }

    pub(super) async fn opened(&self) {
        let _ = self.opened.acquire().await; // There is no permit: it ends when the semaphore is closed.
    }
}

fn runtime() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}
