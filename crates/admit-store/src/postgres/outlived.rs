//! Statements that nobody waits for any more.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::ConnectionError;
use super::database::CallError;

/// How long a statement that nobody waits for any more may go on. Then it is cancelled, or handed past.
const GRACE: Duration = Duration::from_millis(500);

/// What becomes of a statement whose callers have all gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unwanted {
    /// It is cancelled, after a while: what it grants is given back.
    Cancelled,
    /// It goes on, as it gives back.
    Ends,
}

/// The answer of a statement, also if nobody waits for it any more; then the queue is handed on to others meanwhile, so that
/// nobody waits behind it either. Whoever goes away notifies `gone`.
pub(super) async fn outlived<T>(
    statement: impl Future<Output = Result<T, CallError>>,
    gone: &Notify,
    is_waited_for: impl Fn() -> bool,
    unwanted: Unwanted,
    hand_on: impl FnOnce(),
) -> Result<T, CallError> {
    let mut statement = pin!(statement);
    tokio::select! {
        biased;
        answer = &mut statement => return answer,
        () = all_gone(gone, is_waited_for) => {}
    }
    match unwanted {
        Unwanted::Cancelled => {
            hand_on();
            // What is granted is given back.
            let timed_out = |_| Err(ConnectionError::TimedOut(GRACE).into());
            timeout(GRACE, statement).await.unwrap_or_else(timed_out)
        }
        Unwanted::Ends => {
            // Mostly it is short, and what comes after it finds what it gave back.
            if let Ok(answer) = timeout(GRACE, &mut statement).await {
                return answer;
            }
            hand_on();
            statement.await
        }
    }
}

async fn all_gone(gone: &Notify, is_waited_for: impl Fn() -> bool) {
    loop {
        let mut some = pin!(gone.notified());
        some.as_mut().enable(); // Before the look, so that no end is missed.
        if !is_waited_for() {
            return;
        }
        some.await;
    }
}

#[cfg(test)]
mod tests {
    use admit::UnavailableKind;

    use super::super::outage;
    use super::*;

    /// It was told as an answer that is not as it should be.
    #[tokio::test]
    async fn a_statement_that_nobody_waits_for_has_run_out_of_time() {
        let mut handed_on = false;
        let never = std::future::pending::<Result<(), CallError>>();
        let end = outlived(never, &Notify::new(), || false, Unwanted::Cancelled, || handed_on = true).await;
        assert_eq!((outage::kind(&end.unwrap_err()), handed_on), (UnavailableKind::TimedOut, true));
    }
}
