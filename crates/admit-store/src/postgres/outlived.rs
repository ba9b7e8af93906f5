//! Statements that nobody waits for any more.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::database::CallError;

/// How long a statement that nobody waits for any more may go on. Then it is cancelled.
const GRACE: Duration = Duration::from_millis(500);

/// The answer of a statement, also if nobody waits for it any more; then the queue is handed on to others meanwhile, so that nobody
/// waits behind it either. Whoever goes away notifies `gone`.
pub(super) async fn outlived<T>(
    statement: impl Future<Output = Result<T, CallError>>,
    gone: &Notify,
    is_wanted: impl Fn() -> bool,
    hand_on: impl FnOnce(),
) -> Result<T, CallError> {
    let mut statement = pin!(statement);
    tokio::select! {
        biased;
        answer = &mut statement => return answer,
        () = all_gone(gone, is_wanted) => {}
    }
    hand_on();
    // What is granted is given back.
    timeout(GRACE, statement).await.unwrap_or_else(|elapsed| Err(CallError::Answer(elapsed.into())))
}

async fn all_gone(gone: &Notify, is_wanted: impl Fn() -> bool) {
    loop {
        let mut some = pin!(gone.notified());
        some.as_mut().enable(); // Before the look, so that no end is missed.
        if !is_wanted() {
            return;
        }
        some.await;
    }
}
