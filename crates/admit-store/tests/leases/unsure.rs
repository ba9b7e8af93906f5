//! A store that fails, or takes its time, as it is told.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use admit::{BudgetStore, Charge, Decision, Now, Rules, TakeError, Unavailable};
use admit_store::memory::MemoryStore;
use tokio::sync::Semaphore;

/// What becomes of a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is answered.
    Answered,
    /// It fails, and nothing was debited.
    Fails,
    /// It fails, and something may have been debited.
    AnswerIsLost,
    /// It is answered when the gate is opened.
    Waits,
}

/// Takes go to a store of the test's. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Unsure {
    pub(crate) store: MemoryStore,
    fates: Arc<Mutex<VecDeque<Fate>>>,
    gate: Arc<Semaphore>,
    lost: Arc<Mutex<f64>>,
    takes: Arc<Mutex<Vec<Vec<Charge>>>>,
}

impl Unsure {
    pub(crate) fn new(store: MemoryStore) -> Self {
        let gate = Arc::new(Semaphore::new(0));
        Self { store, fates: Arc::default(), gate, lost: Arc::default(), takes: Arc::default() }
    }

    /// The next takes end like this; those after them are answered.
    pub(crate) fn fates(&self, fates: impl IntoIterator<Item = Fate>) {
        *self.fates.lock().unwrap() = fates.into_iter().collect();
    }

    /// Lets one take go on that waits.
    pub(crate) fn open(&self) {
        self.gate.add_permits(1);
    }

    /// The tokens of debits whose answer nobody had.
    pub(crate) fn lost(&self) -> f64 {
        *self.lost.lock().unwrap()
    }

    /// What the store was asked for since it was last asked.
    pub(crate) fn takes(&self) -> Vec<Vec<Charge>> {
        std::mem::take(&mut self.takes.lock().unwrap())
    }
}

/// Counts what was debited, unless the answer gets to somebody.
struct Debited<'a> {
    lost: &'a Mutex<f64>,
    tokens: f64,
}

impl Drop for Debited<'_> {
    fn drop(&mut self) {
        *self.lost.lock().unwrap() += self.tokens;
    }
}

impl BudgetStore for Unsure {
    fn rules(&self) -> &Rules {
        self.store.rules()
    }

    async fn take(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        let fate = self.fates.lock().unwrap().pop_front().unwrap_or(Fate::Answered);
        self.takes.lock().unwrap().push(charges.to_vec());
        let broken =
            || TakeError::Unavailable(Unavailable::new("unsure", std::io::Error::other("broken off")));
        if fate == Fate::Fails {
            return Err(broken());
        }
        let decision = self.store.take(charges, now).await?;
        let tokens = if decision.is_granted() { charges[0].cost.tokens() } else { 0.0 };
        let mut debited = Debited { lost: &self.lost, tokens };
        match fate {
            Fate::AnswerIsLost => return Err(broken()),
            Fate::Waits => self.gate.acquire().await.unwrap().forget(),
            Fate::Answered | Fate::Fails => {}
        }
        debited.tokens = 0.0;
        Ok(decision)
    }

    async fn peek(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        self.store.peek(charges, now).await
    }

    async fn refund(&self, charges: &[Charge]) -> Result<(), TakeError> {
        self.store.refund(charges).await
    }

    async fn delete_idle(&self, now: Now) -> Result<u64, Unavailable> {
        self.store.delete_idle(now).await
    }
}
