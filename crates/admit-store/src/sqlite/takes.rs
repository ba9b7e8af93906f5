//! Takes and what gives back. A caller that goes away neither loses nor leaks tokens: what it was granted is given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admit::{Clock, Decision, Now, Take, Unavailable};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::buckets;
use super::writer::{Failure, Job, Writer, unavailable};

/// With the take, so that whoever finds it abandoned can give it back.
type Answered = Result<(Decision, Take), Arc<Failure>>;

/// Decides takes on the writer's thread. Clones are of one store.
#[derive(Clone)]
pub(super) struct Takes {
    writer: Writer,
    clock: Arc<dyn Clock>,
    unanswered: Arc<AtomicU64>,
}

impl Takes {
    pub(super) fn new(writer: Writer, clock: Arc<dyn Clock>) -> Self {
        Self { writer, clock, unanswered: Arc::default() }
    }

    pub(super) async fn take(&self, take: Take, now: Now) -> Result<Decision, Unavailable> {
        let (caller, answer) = oneshot::channel();
        let (clock, unanswered) = (self.clock.clone(), self.unanswered.clone());
        self.writer.push(Taking { take, now, clock, decision: None, caller, unanswered })?;
        let mut waiting = Waiting { answer, answered: false, takes: self };
        let answered = (&mut waiting.answer).await;
        waiting.answered = true;
        match answered {
            Ok(answered) => answered.map(|(decision, _)| decision).map_err(unavailable),
            Err(_) => Err(unavailable(Failure::Ended)),
        }
    }

    pub(super) async fn refund(&self, take: Take) -> Result<(), Unavailable> {
        let (caller, answer) = oneshot::channel();
        self.writer.push(GivingBack { take, to: To::Caller(caller) })?;
        match answer.await {
            Ok(done) => done.map_err(unavailable),
            Err(_) => Err(unavailable(Failure::Ended)),
        }
    }

    /// How many takes were granted to nobody and could not be given back.
    pub(super) fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::Relaxed)
    }
}

/// A caller that waits. If it goes away when its answer is there, what it was granted is given back.
struct Waiting<'t> {
    answer: oneshot::Receiver<Answered>,
    answered: bool,
    takes: &'t Takes,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.answer.close();
        if let Ok(Ok((Decision::Granted(_), take))) = self.answer.try_recv() {
            let to = To::Nobody(self.takes.unanswered.clone());
            if self.takes.writer.push(GivingBack { take, to }).is_err() {
                self.takes.unanswered.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

struct Taking {
    take: Take,
    now: Now,
    clock: Arc<dyn Clock>,
    decision: Option<Decision>,
    caller: oneshot::Sender<Answered>,
    unanswered: Arc<AtomicU64>,
}

impl Job for Taking {
    fn is_wanted(&self) -> bool {
        !self.caller.is_closed()
    }

    fn run(&mut self, connection: &Connection) -> Result<(), Failure> {
        self.decision = Some(buckets::take(connection, &self.take, self.now.or_by(&*self.clock))?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), Arc<Failure>>) -> Option<Box<dyn Job>> {
        let Self { take, decision, caller, unanswered, .. } = *self;
        let answer = match (committed, decision) {
            (Err(failure), _) => Err(failure),
            (Ok(()), Some(decision)) => Ok((decision, take)),
            (Ok(()), None) => return None, // It did not run; dropping the caller's end tells so.
        };
        match caller.send(answer) {
            Err(Ok((Decision::Granted(_), take))) => {
                Some(Box::new(GivingBack { take, to: To::Nobody(unanswered) }))
            }
            _ => None,
        }
    }
}

/// What gives back is done also when nobody waits for it any more.
struct GivingBack {
    take: Take,
    to: To,
}

enum To {
    Caller(oneshot::Sender<Result<(), Arc<Failure>>>),
    /// It was taken for a caller that is gone. Where it is counted if it cannot be given back.
    Nobody(Arc<AtomicU64>),
}

impl Job for GivingBack {
    fn is_wanted(&self) -> bool {
        true
    }

    fn can_be_late(&self) -> bool {
        matches!(self.to, To::Caller(_))
    }

    fn run(&mut self, connection: &Connection) -> Result<(), Failure> {
        buckets::refund(connection, &self.take)
    }

    fn answer(self: Box<Self>, committed: Result<(), Arc<Failure>>) -> Option<Box<dyn Job>> {
        match self.to {
            To::Caller(caller) => drop(caller.send(committed)), // Who left wants no answer.
            To::Nobody(unanswered) if committed.is_err() => {
                unanswered.fetch_add(1, Ordering::Relaxed);
            }
            To::Nobody(_) => {}
        }
        None
    }
}
