//! Takes and what gives back. A caller that goes away neither loses nor leaks tokens: what it was granted is given back.
//!
//! The store's clock is one that this process reads too. So a take that what was seen of its buckets cannot pay for is refused
//! at once, as the file would refuse it at this moment. What changes buckets clears what was seen of them on the writer's thread,
//! in the order of its transactions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admit::{Bucket, Clock, Decision, MonotonicClock, Now, Take, Timestamp, Unavailable};
use rusqlite::Connection;
use scopeguard::ScopeGuard;
use tokio::sync::oneshot;

use super::buckets;
use super::writer::{Failure, Job, Writer, outcome, unavailable};
use crate::refusals::{Recalled, Refusals, Sighting, Stamp};

/// With the take, so that whoever finds it abandoned can give it back.
type Answered = Result<(Decision, Take), Arc<Failure>>;

/// Decides takes on the writer's thread. Clones are of one store.
#[derive(Clone)]
pub(super) struct Takes {
    writer: Writer,
    shared: Arc<Shared>,
}

/// What the jobs on the writer's thread share.
pub(super) struct Shared {
    /// The store's.
    clock: Arc<dyn Clock>,
    /// One that never steps.
    local: MonotonicClock,
    refusals: Arc<Refusals>,
    unanswered: AtomicU64,
}

impl Takes {
    /// With room to remember so many `refusals`.
    pub(super) fn new(writer: Writer, clock: Arc<dyn Clock>, refusals: usize) -> Self {
        let (local, refusals) = (MonotonicClock::start(), Arc::new(Refusals::new(refusals)));
        Self { writer, shared: Arc::new(Shared { clock, local, refusals, unanswered: AtomicU64::new(0) }) }
    }

    /// `for_good` if it is not to be given back to a caller that has gone.
    pub(super) async fn take(&self, take: Take, now: Now, for_good: bool) -> Result<Decision, Unavailable> {
        let Shared { clock, local, refusals, .. } = &*self.shared;
        let stamp = match refusals.recall(&take, Now::At(now.or_by(&**clock)), || local.now()) {
            Recalled::Refused(decision) => return Ok(decision),
            Recalled::Unknown(stamp) => stamp,
        };
        let (caller, answer) = oneshot::channel();
        let shared = self.shared.clone();
        self.writer.push(Taking { take, now, stamp, for_good, decided: None, caller, shared })?;
        // If the caller goes away when its answer is there, what it was granted is given back.
        let mut answer = scopeguard::guard(answer, |mut answer| {
            answer.close();
            if let Ok(Ok((Decision::Granted(_), take))) = answer.try_recv() {
                let back = self.shared.abandoned(take, for_good);
                if back.is_some_and(|back| self.writer.push(back).is_err()) {
                    self.shared.lose();
                }
            }
        });
        let answered = (&mut *answer).await;
        ScopeGuard::into_inner(answer);
        match answered {
            Ok(answered) => answered.map(|(decision, _)| decision).map_err(unavailable),
            Err(_) => Err(unavailable(Failure::Ended)),
        }
    }

    pub(super) async fn refund(&self, take: Take) -> Result<(), Unavailable> {
        let (caller, answer) = oneshot::channel();
        self.writer.push(GivingBack { take, caller: Some(caller), shared: self.shared.clone() })?;
        match answer.await {
            Ok(done) => done.map_err(unavailable),
            Err(_) => Err(unavailable(Failure::Ended)),
        }
    }

    /// The buckets that were seen too empty, for what changes buckets on the writer's thread.
    pub(super) fn refusals(&self) -> Arc<Refusals> {
        self.shared.refusals.clone()
    }

    /// What jobs on the writer's thread share.
    pub(super) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// How many takes were granted to nobody and could not be given back.
    pub(super) fn unanswered(&self) -> u64 {
        self.shared.unanswered.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// When an operation runs that is of this moment.
    pub(super) fn moment(&self, now: Now) -> Timestamp {
        now.or_by(&*self.clock)
    }

    /// These buckets may hold more than was seen.
    pub(super) fn forget(&self, take: &Take) {
        take.lines().iter().for_each(|line| self.refusals.forget(&line.scope, line.key));
    }

    /// A take was granted to nobody, and is not given back.
    pub(super) fn lose(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// Nobody waits for this take any more, and it was granted: what gives it back, unless it was taken for good.
    fn abandoned(self: &Arc<Self>, take: Take, for_good: bool) -> Option<GivingBack> {
        if for_good {
            self.lose();
            return None;
        }
        Some(GivingBack { take, caller: None, shared: self.clone() })
    }
}

struct Taking {
    take: Take,
    now: Now,
    /// Of when it came.
    stamp: Stamp,
    for_good: bool,
    decided: Option<Decided>,
    caller: oneshot::Sender<Answered>,
    shared: Arc<Shared>,
}

struct Decided {
    decision: Decision,
    /// As they were before, and when they were, by the clock that never steps.
    buckets: Vec<Option<Bucket>>,
    seen: Timestamp,
}

impl Job for Taking {
    fn is_wanted(&self) -> bool {
        !self.caller.is_closed()
    }

    fn run(&mut self, connection: &Connection) -> Result<(), Failure> {
        let seen = self.shared.local.now();
        let (decision, buckets) = buckets::take(connection, &self.take, self.shared.moment(self.now))?;
        self.decided = Some(Decided { decision, buckets, seen });
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), Arc<Failure>>) -> Option<Box<dyn Job>> {
        let Self { take, stamp, for_good, decided, caller, shared, .. } = *self;
        let answer = outcome(committed, decided)?.map(|Decided { decision, buckets, seen }| {
            match decision {
                Decision::Granted(_) => {
                    take.lines().iter().for_each(|line| shared.refusals.clear(&line.scope, line.key));
                }
                Decision::Refused(_) => {
                    let sighting = Sighting { sent: seen, answered: seen, at: None };
                    shared.refusals.remember(stamp, &take, &buckets, sighting);
                }
            }
            (decision, take)
        });
        match caller.send(answer) {
            Err(Ok((Decision::Granted(_), take))) => {
                shared.abandoned(take, for_good).map(|back| Box::new(back) as Box<dyn Job>)
            }
            _ => None,
        }
    }
}

/// What gives back is done also when nobody waits for it any more.
struct GivingBack {
    take: Take,
    /// Nobody for what was granted to a caller that is gone.
    caller: Option<oneshot::Sender<Result<(), Arc<Failure>>>>,
    shared: Arc<Shared>,
}

impl Job for GivingBack {
    fn is_wanted(&self) -> bool {
        true
    }

    fn can_be_late(&self) -> bool {
        self.caller.is_some()
    }

    fn run(&mut self, connection: &Connection) -> Result<(), Failure> {
        self.shared.forget(&self.take);
        buckets::refund(connection, &self.take)
    }

    fn answer(self: Box<Self>, committed: Result<(), Arc<Failure>>) -> Option<Box<dyn Job>> {
        match self.caller {
            Some(caller) => drop(caller.send(committed)), // Who left wants no answer.
            None if committed.is_err() => self.shared.lose(),
            None => {}
        }
        None
    }
}
