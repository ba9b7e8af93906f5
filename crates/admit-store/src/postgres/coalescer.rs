//! Takes and refunds that wait for the statement in flight, and share the next.
//!
//! There is no timer: a take that comes while nothing is in flight goes at once. One statement is in flight at a time, so
//! that operations on a bucket keep the order in which they came; a second connection would gain nothing on a hot bucket,
//! whose row it would wait for.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admit::{Clock, Decision, MonotonicClock, Now, Take, Timestamp, Unavailable, UnavailableKind};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::batch::{self, Batch, Outcome, Want};
use super::database::{CallError, Database, Param, get, moment, timestamp};
use super::queue::{Drive, Queue, QueueFull};
use super::{ConnectionError, PostgresConfig, outage};
use crate::refusals::{Recalled, Refusals, Sighting, Stamp};

/// The most lines of one statement, unless a single take has more: some 40 ms of the server's work.
const MAX_LINES: usize = 4_096;

/// How long a statement that nobody waits for any more may go on. Then it is cancelled.
const GRACE: Duration = Duration::from_millis(500);

/// Clones share the queue.
#[derive(Clone)]
pub(super) struct Coalescer(Arc<Shared>);

struct Shared {
    database: Database,
    one: String,
    many: String,
    queue: Queue<Operation>,
    max_batch: usize,
    max_wait: Duration,
    refusals: Refusals,
    clock: MonotonicClock,
    /// Some caller went away.
    gone: Notify,
    unanswered: AtomicU64,
}

struct Operation {
    want: Want,
    /// For a take: of when it came.
    stamp: Option<Stamp>,
    take: Take,
    now: Now,
    since: Timestamp,
    /// Who waits for the answer; nobody for what is given back of an abandoned take.
    caller: Option<oneshot::Sender<Answered>>,
}

/// With the take, so that whoever finds it abandoned can give it back.
type Answered = Result<(Outcome, Take), Unavailable>;

/// A statement that failed for all that were in it.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
struct OfAll(Arc<CallError>);

/// Why an operation was not done.
#[derive(Debug, thiserror::Error)]
enum Undone {
    #[error("the statements before it took longer than {0:?}")]
    Late(Duration),
    #[error("somebody else holds the bucket")]
    Busy,
    #[error("the runtime that ran the statements has ended")]
    RuntimeEnded,
}

impl Undone {
    fn unavailable(self) -> Unavailable {
        let kind = match self {
            Self::Late(_) | Self::Busy => UnavailableKind::TimedOut,
            Self::RuntimeEnded => UnavailableKind::Broken,
        };
        Unavailable::new("PostgreSQL", self).of_kind(kind)
    }
}

impl From<QueueFull> for Unavailable {
    fn from(full: QueueFull) -> Self {
        Self::new("PostgreSQL", full).of_kind(UnavailableKind::Full)
    }
}

impl Coalescer {
    pub(super) fn new(database: Database, config: &PostgresConfig) -> Self {
        Self(Arc::new(Shared {
            one: format!(
                "SELECT granted, decided_at, bucket_tokens, bucket_refilled_at FROM {}.take_one\
                 ($1, $2, $3, $4, $5, $6, $7)",
                database.schema()
            ),
            many: format!(
                "SELECT decided_at, bucket_tokens, bucket_refilled_at, granted FROM {}.take_many\
                 ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
                database.schema()
            ),
            database,
            queue: Queue::new(config.queue.max(1)),
            max_batch: config.batch.max(1),
            max_wait: config.acquire_timeout,
            refusals: Refusals::new(config.refusals),
            clock: MonotonicClock::start(),
            gone: Notify::new(),
            unanswered: AtomicU64::new(0),
        }))
    }

    /// Decides a take, with all others that wait.
    pub(super) async fn take(&self, take: Take, now: Now) -> Result<Decision, Unavailable> {
        let stamp = match self.0.refusals.recall(&take, now, || self.0.clock.now()) {
            Recalled::Refused(decision) => return Ok(decision),
            Recalled::Unknown(stamp) => stamp,
        };
        match self.done(Want::Debit, Some(stamp), take, now).await? {
            Outcome::Decided(decision) => Ok(decision),
            Outcome::GivenBack | Outcome::Busy => Err(Undone::Busy.unavailable()),
        }
    }

    /// Gives back, in the order of the takes that wait.
    pub(super) async fn refund(&self, take: Take) -> Result<(), Unavailable> {
        match self.done(Want::GiveBack, None, take, Now::Store).await? {
            Outcome::GivenBack => Ok(()),
            Outcome::Decided(_) | Outcome::Busy => Err(Undone::Busy.unavailable()),
        }
    }

    /// The buckets that were seen too empty.
    pub(super) fn refusals(&self) -> &Refusals {
        &self.0.refusals
    }

    /// How many takes were sent whose answer never came: each may have debited, and was told as unavailable.
    pub(super) fn unanswered(&self) -> u64 {
        self.0.unanswered.load(Ordering::Relaxed)
    }

    async fn done(
        &self,
        want: Want,
        stamp: Option<Stamp>,
        take: Take,
        now: Now,
    ) -> Result<Outcome, Unavailable> {
        let (caller, answer) = oneshot::channel();
        self.push(Operation { want, stamp, take, now, since: self.0.clock.now(), caller: Some(caller) })?;
        let mut waiting = Waiting { answer, answered: false, coalescer: self };
        let answered = (&mut waiting.answer).await;
        waiting.answered = true;
        match answered {
            Ok(answered) => Ok(answered?.0),
            Err(_) => Err(Undone::RuntimeEnded.unavailable()),
        }
    }

    fn push(&self, operation: Operation) -> Result<(), QueueFull> {
        if operation.want == Want::GiveBack {
            operation.take.lines().iter().for_each(|line| self.0.refusals.forget(&line.scope, line.key));
        }
        if let Some(drive) = self.0.queue.push(operation)? {
            self.spawn(drive);
        }
        Ok(())
    }

    fn spawn(&self, drive: Drive) {
        tokio::spawn(self.clone().drive(drive));
    }

    /// Nobody waits for this take any more, and it was granted.
    fn abandoned(&self, take: Take) {
        let back = Operation {
            want: Want::GiveBack,
            stamp: None,
            take,
            now: Now::Store,
            since: self.0.clock.now(),
            caller: None,
        };
        if tokio::runtime::Handle::try_current().is_err() || self.push(back).is_err() {
            self.0.unanswered.fetch_add(1, Ordering::Relaxed); // Debited for nothing.
        }
    }

    /// Runs statement after statement, until nothing waits.
    async fn drive(self, drive: Drive) {
        // If the runtime ends, whoever waits in another one hears of it.
        let cut_short = |drive: Option<Drive>| {
            if drive.is_some() {
                drop(self.0.queue.abandon());
            }
        };
        let mut drive = scopeguard::guard(Some(drive), cut_short);
        loop {
            self.gather().await;
            let Some((going_on, batch)) = drive.take().and_then(|drive| self.next(drive)) else { return };
            *drive = Some(going_on);
            self.run(batch, &mut drive).await;
        }
    }

    /// Lets those callers come that are ready to: most were woken by the answers of the statement before.
    async fn gather(&self) {
        let mut waiting = 0;
        loop {
            tokio::task::yield_now().await;
            let now = self.0.queue.len();
            if now == waiting || now >= self.0.max_batch {
                return;
            }
            waiting = now;
        }
    }

    /// The operations at the front that are of one moment, as many as may be.
    fn next(&self, drive: Drive) -> Option<(Drive, Vec<Operation>)> {
        let (mut now, mut operations, mut lines) = (None, 0, 0);
        let joins = |operation: &Operation| {
            operations += 1;
            lines += operation.take.lines().len();
            operations <= self.0.max_batch
                && lines <= MAX_LINES
                && *now.get_or_insert(operation.now) == operation.now
        };
        self.0.queue.next(drive, joins)
    }

    async fn run(&self, mut batch: Vec<Operation>, drive: &mut Option<Drive>) {
        let begin = self.0.clock.now();
        let is_late = |operation: &mut Operation| {
            operation.caller.is_some() && begin.since(operation.since) > self.0.max_wait
        };
        for late in batch.extract_if(.., is_late) {
            late.answer(Err(Undone::Late(self.0.max_wait).unavailable()));
        }
        // What nobody waits for is not done, unless it gives back.
        batch.retain(|operation| operation.caller.as_ref().is_none_or(|caller| !caller.is_closed()));
        if !batch.is_empty() {
            self.settle(batch, drive).await;
        }
    }

    async fn settle(&self, batch: Vec<Operation>, drive: &mut Option<Drive>) {
        let outcomes = {
            let mut statement = pin!(self.outcomes(&batch));
            let outcomes = tokio::select! {
                biased;
                outcomes = &mut statement => Some(outcomes),
                () = self.all_gone(&batch) => None,
            };
            match outcomes {
                Some(outcomes) => outcomes,
                None => {
                    // Nobody else shall wait behind it.
                    drive.take().into_iter().for_each(|drive| self.spawn(drive));
                    match timeout(GRACE, statement).await {
                        Ok(outcomes) => outcomes, // To be given back.
                        Err(elapsed) => Err(CallError::Answer(elapsed.into())),
                    }
                }
            }
        };
        match outcomes {
            Ok(outcomes) => {
                for (operation, outcome) in batch.into_iter().zip(outcomes) {
                    self.tell(operation, outcome);
                }
            }
            Err(error) if batch.len() > 1 && is_of_one(&error) => {
                // One operation must not take the others down with it.
                for operation in batch {
                    Box::pin(self.settle(vec![operation], drive)).await;
                }
            }
            Err(error) => self.fail(batch, error),
        }
    }

    async fn outcomes(&self, batch: &[Operation]) -> Result<Vec<Outcome>, CallError> {
        let outcomes = match batch {
            [alone] if alone.want == Want::Debit && alone.take.lines().len() == 1 => {
                self.send_one(alone).await.map(|outcome| vec![outcome])
            }
            many => self.send(many, false).await,
        };
        if batch.len() > 1
            && outcomes.as_ref().is_err_and(|error| error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
        {
            // Only those that need the bucket shall suffer.
            return self.send(batch, true).await;
        }
        outcomes
    }

    /// Until nobody waits for any operation of the batch.
    async fn all_gone(&self, batch: &[Operation]) {
        let is_gone =
            |operation: &Operation| operation.caller.as_ref().is_some_and(oneshot::Sender::is_closed);
        loop {
            let mut gone = pin!(self.0.gone.notified());
            gone.as_mut().enable(); // Before the look, so that no end is missed.
            if batch.iter().all(is_gone) {
                return;
            }
            gone.await;
        }
    }

    fn tell(&self, operation: Operation, outcome: Outcome) {
        let Operation { take, caller: Some(caller), .. } = operation else { return };
        let answer = match outcome {
            Outcome::Busy => Err(Undone::Busy.unavailable()),
            done => Ok((done, take)),
        };
        if let Err(Ok((Outcome::Decided(Decision::Granted(_)), take))) = caller.send(answer) {
            self.abandoned(take);
        }
    }

    fn fail(&self, batch: Vec<Operation>, error: CallError) {
        let kind = outage::kind(&error);
        let error = OfAll(Arc::new(error));
        if may_be_done(&error.0) {
            let takes = batch.iter().filter(|operation| operation.want == Want::Debit).count();
            self.0.unanswered.fetch_add(takes as u64, Ordering::Relaxed);
        }
        for operation in batch {
            operation.answer(Err(Unavailable::new("PostgreSQL", error.clone()).of_kind(kind)));
        }
    }

    /// A take of one bucket that nobody shares a statement with: a shorter one.
    async fn send_one(&self, operation: &Operation) -> Result<Outcome, CallError> {
        let (take, now) = (&operation.take, operation.now);
        let [line] = take.lines() else { return Err(CallError::Answer("not one line".into())) };
        let sent = self.0.clock.now();
        let params: [Param<'_>; 7] = [
            (&line.scope.as_str(), Type::TEXT),
            (&Uuid::from_bytes(*line.key.as_bytes()), Type::UUID),
            (&line.cost.tokens(), Type::FLOAT8),
            (&line.budget.rate().tokens_per_second(), Type::FLOAT8),
            (&line.budget.burst().tokens(), Type::FLOAT8),
            (&moment(now), Type::TIMESTAMPTZ),
            (self.0.database.lock_timeout_ms(), Type::INT4),
        ];
        let row = self.0.database.row(&self.0.one, &params).await?;
        let at = timestamp(get(&row, 1)?)?;
        let bucket = batch::bucket(get(&row, 2)?, get(&row, 3)?)?;
        if get(&row, 0)? {
            self.0.refusals.clear(&line.scope, line.key);
            let bucket = bucket.ok_or_else(|| CallError::Answer("the debited bucket is missing".into()))?;
            let at = if now == Now::Store { at.max(bucket.refilled_at) } else { at };
            return Ok(Outcome::Decided(take.granted(at, &[bucket])));
        }
        if let Some(stamp) = operation.stamp {
            self.0.refusals.remember(stamp, take, &[bucket], self.sighting(now, at, sent));
        }
        Ok(Outcome::Decided(take.refused(at, &[bucket])))
    }

    /// When a bucket was seen at `at`, by an answer that is there now.
    fn sighting(&self, now: Now, at: Timestamp, sent: Timestamp) -> Sighting {
        match now {
            Now::Store => Sighting::ByStore { at, sent, answered: self.0.clock.now() },
            Now::At(_) => Sighting::ByCaller,
        }
    }

    /// One statement for all of them.
    async fn send(&self, operations: &[Operation], careful: bool) -> Result<Vec<Outcome>, CallError> {
        let each = || operations.iter().map(|operation| (operation.want, &operation.take));
        let now = operations.first().map_or(Now::Store, |operation| operation.now);
        let batch = Batch::of(each());
        let sent = self.0.clock.now();
        let row = self
            .0
            .database
            .row(
                &self.0.many,
                &[
                    (&batch.scopes(), Type::TEXT_ARRAY),
                    (&batch.keys(), Type::UUID_ARRAY),
                    (&batch.bounds.costs, Type::FLOAT8_ARRAY),
                    (&batch.bounds.rates, Type::FLOAT8_ARRAY),
                    (&batch.bounds.bursts, Type::FLOAT8_ARRAY),
                    (&batch.line_buckets, Type::INT4_ARRAY),
                    (&batch.lines.costs, Type::FLOAT8_ARRAY),
                    (&batch.lines.rates, Type::FLOAT8_ARRAY),
                    (&batch.lines.bursts, Type::FLOAT8_ARRAY),
                    (&batch.run_lines, Type::INT4_ARRAY),
                    (&batch.run_times, Type::INT4_ARRAY),
                    (&moment(now), Type::TIMESTAMPTZ),
                    (self.0.database.lock_timeout_ms(), Type::INT4),
                    (&careful, Type::BOOL),
                ],
            )
            .await?;
        let answer = batch.answer(each(), &row, now == Now::Store)?;
        let sighting = self.sighting(now, answer.at, sent);
        batch.buckets().iter().for_each(|&(scope, key)| self.0.refusals.clear(scope, key));
        for (i, (operation, outcome)) in operations.iter().zip(&answer.outcomes).enumerate() {
            if let (Some(stamp), Outcome::Decided(Decision::Refused(_))) = (operation.stamp, outcome) {
                let left = batch.left(&answer, i, &operation.take);
                self.0.refusals.remember(stamp, &operation.take, &left, sighting);
            }
        }
        Ok(answer.outcomes)
    }
}

impl Operation {
    fn answer(self, answer: Answered) {
        if let Some(caller) = self.caller {
            let _ = caller.send(answer); // Nobody waits: it was not done.
        }
    }
}

/// Whether the server found fault with what it was sent, and so may not with the rest of it.
fn is_of_one(error: &CallError) -> bool {
    error.code().is_some_and(|code| ["22", "23"].contains(&&code.code()[..2]))
}

/// Whether the statement may have been committed all the same.
fn may_be_done(error: &CallError) -> bool {
    match error {
        CallError::Connection(ConnectionError::Pool(_)) => false, // It was not sent.
        CallError::Connection(ConnectionError::TimedOut(_)) | CallError::Answer(_) => true,
        // What the server fails it undoes, unless it ends the session.
        CallError::Statement(error) => error.code().is_none_or(outage::ends_sessions),
    }
}

/// A caller that waits. If it goes away, what it was granted is given back.
struct Waiting<'c> {
    answer: oneshot::Receiver<Answered>,
    answered: bool,
    coalescer: &'c Coalescer,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.answer.close();
        self.coalescer.0.gone.notify_waiters();
        if let Ok(Ok((Outcome::Decided(Decision::Granted(_)), take))) = self.answer.try_recv() {
            self.coalescer.abandoned(take);
        }
    }
}

impl fmt::Debug for Coalescer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalescer").field("waiting", &self.0.queue.len()).finish_non_exhaustive()
    }
}
