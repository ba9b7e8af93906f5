//! A store that fails, or takes its time, as it is told. Like the stores of production it gives back by itself what a caller was
//! granted that went away.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use admit::{BudgetStore, Charge, Decision, Now, Rules, TakeError, Unavailable};
use admit_store::leases::Lessor;
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
    /// It is decided, and answered when the gate is opened.
    Waits,
    /// It is decided when the gate is opened.
    Stuck,
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

    /// The next takes end like this; those after them are answered. The gate is closed.
    pub(crate) fn fates(&self, fates: impl IntoIterator<Item = Fate>) {
        self.gate.forget_permits(usize::MAX);
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

    /// How often the store was asked since it was last told.
    pub(crate) fn asked(&self) -> usize {
        self.takes.lock().unwrap().len()
    }

    /// What the store was asked for since it was last asked.
    pub(crate) fn takes(&self) -> Vec<Vec<Charge>> {
        std::mem::take(&mut self.takes.lock().unwrap())
    }
}

/// What was debited, unless the answer gets to somebody: it is given back to the store, or counted as lost.
struct Debited<'a> {
    unsure: &'a Unsure,
    charges: &'a [Charge],
    for_good: bool,
}

impl Drop for Debited<'_> {
    fn drop(&mut self) {
        match self.charges {
            [] => {}
            [first, ..] if self.for_good => *self.unsure.lost.lock().unwrap() += first.cost.tokens(),
            charges => {
                let refund = pin!(self.unsure.store.refund(charges));
                assert!(refund.poll(&mut Context::from_waker(Waker::noop())).is_ready());
            }
        }
    }
}

impl Unsure {
    async fn decide(&self, charges: &[Charge], now: Now, for_good: bool) -> Result<Decision, TakeError> {
        let fate = self.fates.lock().unwrap().pop_front().unwrap_or(Fate::Answered);
        self.takes.lock().unwrap().push(charges.to_vec());
        let broken =
            || TakeError::Unavailable(Unavailable::new("unsure", std::io::Error::other("broken off")));
        if fate == Fate::Fails {
            return Err(broken());
        }
        if fate == Fate::Stuck {
            self.gate.acquire().await.unwrap().forget();
        }
        let decision = self.store.take(charges, now).await?;
        let charges = if decision.is_granted() { charges } else { &[] };
        let mut debited = Debited { unsure: self, charges, for_good };
        match fate {
            Fate::AnswerIsLost => {
                debited.for_good = true;
                return Err(broken());
            }
            Fate::Waits => self.gate.acquire().await.unwrap().forget(),
            Fate::Answered | Fate::Fails | Fate::Stuck => {}
        }
        debited.charges = &[];
        Ok(decision)
    }
}

impl BudgetStore for Unsure {
    fn rules(&self) -> &Rules {
        self.store.rules()
    }

    async fn take(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        self.decide(charges, now, false).await
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

impl Lessor for Unsure {
    async fn take_for_good(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        self.decide(charges, now, true).await
    }
}
