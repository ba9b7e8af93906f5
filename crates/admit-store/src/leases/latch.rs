//! Something that happens once, and that any number of callers wait for.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Opens once. A caller that begins to wait after that does not wait.
#[derive(Clone, Debug)]
pub(super) struct Latch(Arc<Semaphore>);

impl Latch {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    pub(super) fn open(&self) {
        self.0.close();
    }

    pub(super) async fn opened(&self) {
        let _ = self.0.acquire().await; // There is no permit: it ends when the semaphore is closed.
    }
}
