//! Takes and refunds that wait for the statement in flight, and share the next.
//!
//! There is no timer: a take that comes while nothing is in flight goes at once, after a look at its row where that is
//! known to be held. A bucket is in one statement at a time, so that operations on it keep the order in which they came; a
//! second connection would gain nothing on a hot bucket, whose row it would wait for. Where a batch has many buckets, each
//! half of them has a statement.

mod alone;
mod operation;
mod statements;
mod turn;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admit::{Clock, Decision, MonotonicClock, Now, Take, Unavailable};
use scopeguard::ScopeGuard;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::PostgresConfig;
use super::batch::{Outcome, Want};
use super::database::{CallError, Database};
use super::driver::Driver;
use super::held::{Buckets, Held};
use super::outlived::{Unwanted, outlived};
use super::queue::{Drive, Position, Queue, QueueFull, TooLong, Waits};
use super::undone::{OfAll, Undone, is_held, is_of_one, may_be_done};
use crate::refusals::{Recalled, Refusals, Stamp};
use operation::{Operation, other_half};
use statements::{Statements, Way};
use turn::Turn;

/// The fewest connections with which a batch may have two: one is left for what else the store does.
const ENOUGH_CONNECTIONS: usize = 3;

/// The most of a batch that are to be given back again later, as somebody holds their buckets: they must not fill the queue.
const MAX_AGAIN: usize = 1_024;

/// How long those wait where nothing else is to be done.
const PAUSE: Duration = Duration::from_millis(100);

/// Clones share the queue.
#[derive(Clone)]
pub(super) struct Coalescer(Arc<Shared>);

struct Shared {
    database: Database,
    statements: Statements,
    queue: Queue<Operation>,
    max_batch: usize,
    /// Whether a batch may be two statements.
    halves: bool,
    waits: Waits,
    refusals: Refusals,
    held: Held,
    clock: MonotonicClock,
    /// Some caller went away.
    gone: Notify,
    /// Some operation came.
    came: Notify,
    unanswered: AtomicU64,
}

impl Coalescer {
    pub(super) fn new(database: Database, config: &PostgresConfig) -> Self {
        Self(Arc::new(Shared {
            statements: Statements::new(database.schema()),
            held: Held::new(database.clone(), config),
            database,
            queue: Queue::new(config.queue.max(1)),
            max_batch: config.batch.max(1),
            halves: config.connections >= ENOUGH_CONNECTIONS,
            waits: config.waits(),
            refusals: Refusals::new(config.refusals),
            clock: MonotonicClock::start(),
            gone: Notify::new(),
            came: Notify::new(),
            unanswered: AtomicU64::new(0),
        }))
    }

    /// Decides a take, with all others that wait. What nobody waits for any more is given back unless it is taken `for_good`.
    pub(super) async fn take(&self, take: Take, now: Now, for_good: bool) -> Result<Decision, Unavailable> {
        let stamp = match self.0.refusals.recall(&take, now, || self.0.clock.now()) {
            Recalled::Refused(decision) => return Ok(decision),
            Recalled::Unknown(stamp) => stamp,
        };
        match self.done(Want::Debit, Some(stamp), take, now, for_good).await? {
            Outcome::Decided(decision) => Ok(decision),
            // Who is busy was told so.
            Outcome::GivenBack | Outcome::Busy => {
                Err(CallError::Answer("a take was given back".into()).into())
            }
        }
    }

    /// Gives back, in the order of the takes that wait.
    pub(super) async fn refund(&self, take: Take) -> Result<(), Unavailable> {
        match self.done(Want::GiveBack, None, take, Now::Store, true).await? {
            Outcome::GivenBack => Ok(()),
            Outcome::Decided(_) | Outcome::Busy => {
                Err(CallError::Answer("what was to be given back was taken".into()).into())
            }
        }
    }

    /// The buckets that were seen too empty.
    pub(super) fn refusals(&self) -> &Refusals {
        &self.0.refusals
    }

    /// The buckets that somebody holds.
    pub(super) fn held(&self) -> &Held {
        &self.0.held
    }

    /// How many takes were sent whose answer never came, or came to nobody and stays debited: each may have debited, and was
    /// told as unavailable, if to anybody.
    pub(super) fn unanswered(&self) -> u64 {
        self.0.unanswered.load(Ordering::Relaxed)
    }

    async fn done(
        &self,
        want: Want,
        stamp: Option<Stamp>,
        take: Take,
        now: Now,
        for_good: bool,
    ) -> Result<Outcome, Unavailable> {
        let (caller, answer) = oneshot::channel();
        let since = self.0.clock.now();
        let caller = Some(caller);
        let position =
            self.push(Operation { want, stamp, take, now, since, for_good, again: false, caller })?;
        // If the caller goes away, what it was granted is given back, unless it was taken for good.
        let mut answer = scopeguard::guard(answer, |mut answer| {
            answer.close();
            self.0.gone.notify_waiters();
            if let Ok(Ok((Outcome::Decided(Decision::Granted(_)), take))) = answer.try_recv() {
                self.abandoned(take, for_good);
            }
        });
        let answered = self.0.queue.answer(position, &mut answer, self.0.waits).await;
        let answered = answered.map_err(|too_long| Undone::from(too_long).unavailable())?;
        ScopeGuard::into_inner(answer);
        match answered {
            Ok(answered) => Ok(answered?.0),
            Err(_) => Err(Undone::RuntimeEnded.unavailable()),
        }
    }

    fn push(&self, operation: Operation) -> Result<Position, QueueFull> {
        if operation.want == Want::GiveBack {
            operation.take.lines().iter().for_each(|line| self.0.refusals.forget(&line.scope, line.key));
        }
        let (position, drive) = self.0.queue.push(operation)?;
        self.0.came.notify_one();
        self.spawn(drive);
        Ok(position)
    }

    /// Nobody waits for this take any more, and it was granted.
    pub(super) fn abandoned(&self, take: Take, for_good: bool) {
        match for_good {
            true => drop(self.0.unanswered.fetch_add(1, Ordering::Relaxed)),
            false => self.give_back(take),
        }
    }

    fn give_back(&self, take: Take) {
        let back = Operation {
            want: Want::GiveBack,
            stamp: None,
            take,
            now: Now::Store,
            since: self.0.clock.now(),
            for_good: true,
            again: false,
            caller: None,
        };
        if tokio::runtime::Handle::try_current().is_err() || self.push(back).is_err() {
            self.0.unanswered.fetch_add(1, Ordering::Relaxed); // Debited for nothing.
        }
    }

    /// Whichever half is the last to end, or to have no callers left, hands the drive on.
    async fn settle_half(&self, half: Vec<Operation>, over: Buckets, turn: &Turn<'_>) {
        let mut turn = Some(turn);
        self.settle(half, Way::Paying, over, &mut turn).await;
        self.hand_on(&mut turn);
    }

    /// The queue need not wait for this statement any more.
    fn hand_on(&self, turn: &mut Option<&Turn<'_>>) {
        self.spawn(turn.take().and_then(Turn::leave));
    }

    /// Until all are answered; those that need one of the buckets that are passed `over` hear that somebody holds it, and
    /// what was to be given back to one waits again. The drive may be handed on, if it is this one's `turn`, while they are
    /// the last that it has to settle.
    async fn settle(
        &self,
        mut batch: Vec<Operation>,
        mut way: Way,
        mut over: Buckets,
        turn: &mut Option<&Turn<'_>>,
    ) {
        loop {
            batch.retain(Operation::is_wanted);
            if batch.is_empty() {
                return;
            }
            match self.sent(&batch, way, &over, turn).await {
                Ok(outcomes) => {
                    let (mut open, mut again) = (Vec::new(), Vec::new());
                    for (operation, outcome) in batch.into_iter().zip(outcomes) {
                        match outcome {
                            Some(Outcome::Busy) if again.len() < MAX_AGAIN && self.may_wait(&operation) => {
                                again.push(Operation { again: true, ..operation });
                            }
                            Some(outcome) => self.tell(operation, outcome),
                            None => open.push(operation),
                        }
                    }
                    self.spawn(self.0.queue.put_back(again));
                    (batch, way) = (open, Way::Walking);
                }
                // Only those that need the bucket shall suffer.
                Err(error) if way != Way::Hasty && is_held(&error) => {
                    let found = self.0.held.found(batch.iter().map(|operation| &operation.take), &over).await;
                    way = if found.is_empty() { Way::Hasty } else { way.anew() };
                    over.extend(found);
                }
                // One operation must not take the others down with it.
                Err(error)
                    if batch.len() > 1 && (is_of_one(&error) || is_held(&error) || error.is_transient()) =>
                {
                    let second = batch.split_off(batch.len() / 2);
                    Box::pin(self.settle(batch, way.anew(), over.clone(), &mut None)).await;
                    (batch, way) = (second, way.anew());
                }
                Err(error) => return self.fail(batch, error),
            }
        }
    }

    /// The outcomes of a statement.
    async fn sent(
        &self,
        batch: &[Operation],
        way: Way,
        over: &Buckets,
        turn: &mut Option<&Turn<'_>>,
    ) -> Result<Vec<Option<Outcome>>, CallError> {
        let debits = batch.iter().filter(|operation| operation.want == Want::Debit).count() as u64;
        // Their answer will not come if this task is ended.
        let unsure = scopeguard::guard(debits, |debits| {
            self.0.unanswered.fetch_add(debits, Ordering::Relaxed);
        });
        let outcomes = self.outlived(batch, self.outcomes(batch, way, over), || self.hand_on(turn)).await;
        ScopeGuard::into_inner(unsure);
        outcomes
    }

    /// What a statement for the batch comes to, also if nobody waits for it any more: then nobody else waits behind it either.
    async fn outlived<T>(
        &self,
        batch: &[Operation],
        statement: impl Future<Output = Result<T, CallError>>,
        hand_on: impl FnOnce(),
    ) -> Result<T, CallError> {
        let is_waited_for = || batch.iter().any(Operation::is_waited_for);
        let gives_back = batch.iter().any(|operation| operation.want == Want::GiveBack);
        let unwanted = if gives_back { Unwanted::Ends } else { Unwanted::Cancelled };
        outlived(statement, &self.0.gone, is_waited_for, unwanted, hand_on).await
    }

    /// Whether an operation whose bucket somebody holds is tried again: one that gives back, for as long as others wait to begin.
    fn may_wait(&self, operation: &Operation) -> bool {
        let waited = self.0.clock.now().since(operation.since);
        operation.want == Want::GiveBack && waited < self.0.waits.to_begin
    }

    fn tell(&self, operation: Operation, outcome: Outcome) {
        let Operation { take, for_good, caller: Some(caller), .. } = operation else {
            if let Outcome::Busy = outcome {
                self.0.unanswered.fetch_add(1, Ordering::Relaxed); // Not given back.
            }
            return;
        };
        let answer = match outcome {
            Outcome::Busy => Err(Undone::Busy.unavailable()),
            done => Ok((done, take)),
        };
        if let Err(Ok((Outcome::Decided(Decision::Granted(_)), take))) = caller.send(answer) {
            self.abandoned(take, for_good);
        }
    }

    fn fail(&self, batch: Vec<Operation>, error: CallError) {
        // A take may have debited; what was to be given back of an abandoned one stays spent.
        let spent = |operation: &&Operation| match operation.want {
            Want::Debit => may_be_done(&error),
            Want::GiveBack => operation.caller.is_none(),
        };
        self.0.unanswered.fetch_add(batch.iter().filter(spent).count() as u64, Ordering::Relaxed);
        let error = OfAll::new(error);
        batch.into_iter().for_each(|operation| operation.answer(Err(error.unavailable())));
    }
}

impl Driver for Coalescer {
    type Operation = Operation;

    fn queue(&self) -> &Queue<Operation> {
        &self.0.queue
    }

    fn max_batch(&self) -> usize {
        self.0.max_batch
    }

    fn takes(operation: &Operation) -> (&Take, Now) {
        (&operation.take, operation.now)
    }

    async fn run(&self, mut batch: Vec<Operation>, drive: &mut Option<Drive>) {
        if batch.iter().all(|operation| operation.again) {
            let _ = timeout(PAUSE, self.0.came.notified()).await; // Either will do.
        }
        let begin = self.0.clock.now();
        let is_late = |operation: &mut Operation| {
            let waited = begin.since(operation.since);
            operation.caller.is_some() && !operation.again && waited > self.0.waits.to_begin
        };
        for late in batch.extract_if(.., is_late) {
            late.answer(Err(Undone::from(TooLong::ToBegin(self.0.waits.to_begin)).unavailable()));
        }
        let still = async { Ok(self.0.held.still(batch.iter().map(|operation| &operation.take)).await) };
        let over = self.outlived(&batch, still, || self.spawn(drive.take())).await.unwrap_or_default();
        let other = if self.0.halves { other_half(&mut batch) } else { Vec::new() };
        if other.is_empty() {
            let turn = Turn::of(1, drive);
            return self.settle(batch, Way::Paying, over, &mut Some(&turn)).await;
        }
        let turn = Turn::of(2, drive);
        tokio::join!(self.settle_half(batch, over.clone(), &turn), self.settle_half(other, over, &turn));
    }

    /// Their callers hear of it; what was to be given back stays spent.
    fn lose(&self, operations: Vec<Operation>) {
        let abandoned = operations.iter().filter(|operation| operation.caller.is_none()).count();
        self.0.unanswered.fetch_add(abandoned as u64, Ordering::Relaxed);
    }
}

impl fmt::Debug for Coalescer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalescer").field("waiting", &self.0.queue.len()).finish_non_exhaustive()
    }
}
