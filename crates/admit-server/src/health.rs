//! Whether the store answers, asked when somebody wants to know.

use std::time::Duration;

use admit::{BudgetStore, Charge, Key, Now, TakeError, Unavailable, UnavailableKind};
use admit_tower::CorrelationId;
use tokio::time::timeout;

use crate::measured::Measured;
use crate::reload::Running;

/// How long the store may take to answer: who asks for health, or scrapes metrics, waits for some seconds at the most.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// Asks the store for a bucket that nobody has, and has something given back to it, which only a store that can be written
/// does; it changes nothing.
///
/// # Errors
/// [`Unavailable`], of the kind in which it does not answer.
pub async fn store(running: &Running) -> Result<(), Unavailable> {
    probe(&Measured::new(running.in_force().store.clone(), running.metrics().store.clone())).await
}

/// The same, for whoever has the store.
///
/// # Errors
/// As [`store`].
pub(crate) async fn probe(store: &Measured) -> Result<(), Unavailable> {
    match ask(store).await {
        // A connection that was open broke off: what a new one meets is how it stands.
        Err(broken) if broken.kind() == UnavailableKind::Broken => ask(store).await,
        answer => answer,
    }
}

async fn ask(store: &Measured) -> Result<(), Unavailable> {
    // Any scope will do, also one that callers bring budgets to, with a budget that one token fits in.
    let scope = store.rules().scopes.iter().next().cloned();
    let (Some(scope), Ok(budget)) = (scope, "1/second".parse()) else { return Ok(()) };
    // Nobody can guess it, and so have it filled.
    let nobody = Key::hashed(CorrelationId::random().to_string());
    let probe = [Charge::one(scope, nobody, budget)];
    let ask = async {
        let _ = store.peek(&probe, Now::Store).await?; // Whatever it is, it answered.
        store.refund(&probe).await
    };
    match timeout(TIME_LIMIT, ask).await {
        Ok(Ok(()) | Err(TakeError::Charge(_))) => Ok(()), // One token of one a second is right for every store.
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
        UnavailableKind::Full => {
            "there is no room: in the queue to the store, on its disk, or under the bound of one in memory"
        }
        UnavailableKind::Failed => "the store failed; the log has the cause",
    }
}
