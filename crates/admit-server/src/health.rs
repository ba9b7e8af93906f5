//! Whether the store answers, asked when somebody wants to know.

use std::time::Duration;

use admit::{BudgetStore, Charge, Key, Now, TakeError, Unavailable, UnavailableKind};
use tokio::time::timeout;

use crate::measured::Measured;
use crate::reload::Running;

/// How long the store may take to answer: who asks for health, or scrapes metrics, waits for some seconds at the most.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// Asks the store for a bucket that nobody has, which writes nothing.
///
/// # Errors
/// [`Unavailable`], of the kind in which it does not answer.
pub async fn store(running: &Running) -> Result<(), Unavailable> {
    match ask(running).await {
        // A connection that was open broke off: what a new one meets is how it stands.
        Err(broken) if broken.kind() == UnavailableKind::Broken => ask(running).await,
        answer => answer,
    }
}

async fn ask(running: &Running) -> Result<(), Unavailable> {
    let in_force = running.in_force();
    let Some(budget) = in_force.policy.budgets.first() else { return Ok(()) };
    let probe = [Charge::one(budget.scope.clone(), Key::hashed("health"), budget.budget)];
    let store = Measured::new(in_force.store.clone(), running.metrics().store.clone());
    match timeout(TIME_LIMIT, store.peek(&probe, Now::Store)).await {
        Ok(Ok(_) | Err(TakeError::Charge(_))) => Ok(()), // A policy that was taken has no wrong charges.
        Ok(Err(TakeError::Unavailable(cause))) => Err(cause),
        Err(elapsed) => Err(Unavailable::timed_out("budget", elapsed)),
    }
}

/// What an operator does about it.
pub fn advice(kind: UnavailableKind) -> &'static str {
    match kind {
        UnavailableKind::Refused => {
            "the store refuses connections: is it running, has it too many connections, are user and password right?"
        }
        UnavailableKind::TimedOut => {
            "the store gives no answer in time: it hangs, is overloaded or locked, or the network drops packets"
        }
        UnavailableKind::Broken => "the store's connection broke off before the answer",
        UnavailableKind::Rejected => {
            "the store answers, and refuses to do what it is asked: look for missing rights, or a read-only server"
        }
        UnavailableKind::Full => "a bound is reached: of the queue to the store, or of what it may hold",
        UnavailableKind::Failed => "the store failed; the log has the cause",
    }
}
