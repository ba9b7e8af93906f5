//! The task that sends what waits in a queue, statement after statement.

use std::ops::DerefMut;

use admit::{Now, Take};

use super::queue::{Drive, Queue};

/// Who sends what waits in its queue. Clones share the queue.
pub(super) trait Driver: Clone + Send + Sync + 'static {
    type Operation: Send;

    fn queue(&self) -> &Queue<Self::Operation>;

    /// The most operations of one statement.
    fn max_batch(&self) -> usize;

    /// What an operation takes, and at which moment.
    fn takes(operation: &Self::Operation) -> (&Take, Now);

    /// Sees to it that each operation is answered, or waits again. May hand the drive on before that is done.
    fn run(&self, batch: Vec<Self::Operation>, drive: &mut Option<Drive>) -> impl Future<Output = ()> + Send;

    /// Nobody will do these, as the runtime ends.
    fn lose(&self, operations: Vec<Self::Operation>);

    /// Drives in a task of its own, if the drive is there.
    fn spawn(&self, drive: Option<Drive>) {
        if drive.is_none() {
            return;
        }
        // Also if the runtime ends before the task was ever polled: whoever waits in another runtime hears of it.
        let driver = self.clone();
        let drive = scopeguard::guard(drive, move |drive| {
            if drive.is_some() {
                driver.lose(driver.queue().abandon());
            }
        });
        tokio::spawn(run_all(self.clone(), drive));
    }
}

/// Until nothing waits, or until another task drives.
async fn run_all<D: Driver>(driver: D, mut drive: impl DerefMut<Target = Option<Drive>> + Send) {
    loop {
        driver.queue().gather(driver.max_batch()).await;
        let next = |drive| driver.queue().next_of_one_moment(drive, driver.max_batch(), D::takes);
        let Some((going_on, batch)) = drive.take().and_then(next) else { return };
        *drive = Some(going_on);
        driver.run(batch, &mut drive).await;
    }
}
