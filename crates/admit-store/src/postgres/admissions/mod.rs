//! Admissions of requests that are to run once: those that wait for the statement in flight share the next, as takes do.
//!
//! They have a queue of their own beside that of takes. One statement is in flight at a time; it looks keys up, takes budgets and
//! claims keys, in one transaction. Remembered refusals are not asked, as a key has to be looked up anyhow: a replay is answered
//! though its bucket is empty.

mod statement;

use std::collections::HashSet;
use std::fmt;
use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admit::idempotency::{Fingerprint, RecordKey, Terms, Ticket};
use admit::{
    AdmissionError, AdmissionStore, Charge, Clock, MonotonicClock, Now, Prepared, Take, TakeError, Timestamp,
    Unavailable, Verdict, one_by_one,
};
use scopeguard::ScopeGuard;
use tokio::sync::oneshot;

use super::coalescer::{Coalescer, MAX_LINES, OfAll, Undone, is_held, is_of_one, may_be_done};
use super::database::{CallError, Database};
use super::queue::{Drive, Queue, Waits};
use super::{PostgresConfig, PostgresStore, outage, records};
use statement::Answer;

/// The most requests of one statement: some 40 ms of the server's work, most of it for new records.
const MAX_REQUESTS: usize = 1_024;

/// Clones share the queue.
#[derive(Clone)]
pub(super) struct Admissions(Arc<Shared>);

struct Shared {
    database: Database,
    statement: String,
    records: Arc<records::Statements>,
    coalescer: Coalescer,
    queue: Queue<Request>,
    max_batch: usize,
    waits: Waits,
    clock: MonotonicClock,
    unanswered: AtomicU64,
}

/// A request that waits.
struct Request {
    asked: Asked,
    since: Timestamp,
    caller: oneshot::Sender<Answered>,
}

/// What a request asks for.
struct Asked {
    key: RecordKey,
    fingerprint: Fingerprint,
    terms: Terms,
    take: Take,
    now: Now,
}

/// With what was asked for, so that whoever finds an admission abandoned can undo it.
type Answered = Result<(Verdict, Asked), Unavailable>;

impl AdmissionStore for PostgresStore {
    async fn admit(
        &self,
        charges: &[Charge],
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Verdict, AdmissionError> {
        let take = match self.rules.prepare(charges).map_err(TakeError::from)? {
            Prepared::Ask(take) => take,
            // Without a bucket to ask it is a claim, or a look.
            Prepared::Decided(_) => return one_by_one(self, charges, key, fingerprint, terms, now).await,
        };
        let asked = Asked { key: *key, fingerprint: *fingerprint, terms: terms.clone(), take, now };
        Ok(self.admissions.admit(asked).await.map_err(TakeError::from)?)
    }

    fn admits_in_one_step(&self, _: &[Charge]) -> bool {
        true
    }
}

impl Admissions {
    pub(super) fn new(
        database: Database,
        config: &PostgresConfig,
        coalescer: Coalescer,
        records: Arc<records::Statements>,
    ) -> Self {
        Self(Arc::new(Shared {
            statement: statement::sql(database.schema()),
            database,
            records,
            coalescer,
            queue: Queue::new(config.queue.max(1)),
            max_batch: config.batch.clamp(1, MAX_REQUESTS),
            waits: config.waits(),
            clock: MonotonicClock::start(),
            unanswered: AtomicU64::new(0),
        }))
    }

    /// How many were sent whose answer never came: each may have debited and claimed, and was told as unavailable.
    pub(super) fn unanswered(&self) -> u64 {
        self.0.unanswered.load(Ordering::Relaxed)
    }

    async fn admit(&self, asked: Asked) -> Result<Verdict, Unavailable> {
        let (caller, answer) = oneshot::channel();
        let (position, drive) = self.0.queue.push(Request { asked, since: self.0.clock.now(), caller })?;
        drive.into_iter().for_each(|drive| self.spawn(drive));
        let mut waiting = Waiting { answer, answered: false, admissions: self };
        let Some(answered) = self.0.queue.answer(position, &mut waiting.answer, self.0.waits).await else {
            return Err(Undone::Late(self.0.waits.to_begin).unavailable());
        };
        waiting.answered = true;
        match answered {
            Ok(answered) => Ok(answered?.0),
            Err(_) => Err(Undone::RuntimeEnded.unavailable()),
        }
    }

    fn spawn(&self, drive: Drive) {
        // Also if the runtime ends before the task was ever polled: whoever waits in another runtime hears of it.
        let admissions = self.clone();
        let drive = scopeguard::guard(Some(drive), move |drive| {
            if drive.is_some() {
                drop(admissions.0.queue.abandon());
            }
        });
        let admissions = self.clone();
        tokio::spawn(async move { admissions.drive(drive).await });
    }

    /// Runs statement after statement, until nothing waits.
    async fn drive(self, mut drive: impl DerefMut<Target = Option<Drive>>) {
        loop {
            self.0.queue.gather(self.0.max_batch).await;
            let Some((going_on, batch)) = drive.take().and_then(|drive| self.next(drive)) else { return };
            *drive = Some(going_on);
            self.run(batch).await;
        }
    }

    /// The requests at the front that are of one moment, as many as may be.
    fn next(&self, drive: Drive) -> Option<(Drive, Vec<Request>)> {
        let (mut now, mut requests, mut lines) = (None, 0, 0);
        let joins = |request: &Request| {
            requests += 1;
            lines += request.asked.take.lines().len();
            requests <= self.0.max_batch
                && lines <= MAX_LINES
                && *now.get_or_insert(request.asked.now) == request.asked.now
        };
        self.0.queue.next(drive, joins)
    }

    async fn run(&self, mut batch: Vec<Request>) {
        let begin = self.0.clock.now();
        for late in batch.extract_if(.., |request| begin.since(request.since) > self.0.waits.to_begin) {
            late.fail(Undone::Late(self.0.waits.to_begin).unavailable());
        }
        self.settle(batch, false).await;
    }

    /// Until all are answered. `careful` is without waiting for buckets that somebody else holds.
    async fn settle(&self, mut batch: Vec<Request>, mut careful: bool) {
        loop {
            batch.retain(Request::is_wanted);
            if batch.is_empty() {
                return;
            }
            // A statement has each key once.
            let mut keys = HashSet::new();
            let (mut first, later): (Vec<_>, Vec<_>) =
                batch.into_iter().partition(|request| keys.insert(request.asked.key));
            let several = first.len() > 1;
            // Their answer will not come if this task is ended.
            let unsure = scopeguard::guard(first.len() as u64, |sent| {
                self.0.unanswered.fetch_add(sent, Ordering::Relaxed);
            });
            let answer = self.send(&first, careful).await;
            ScopeGuard::into_inner(unsure);
            match answer {
                Ok(answer) => batch = self.tell(first, later, answer),
                // Only those that need the bucket shall suffer.
                Err(error) if several && !careful && is_held(&error) => {
                    careful = true;
                    batch = first;
                    batch.extend(later);
                }
                // One request must not take the others down with it.
                Err(error) if several && (is_of_one(&error) || is_held(&error) || error.is_transient()) => {
                    batch = first.split_off(first.len() / 2);
                    batch.extend(later);
                    Box::pin(self.settle(first, careful)).await;
                }
                Err(error) => {
                    self.fail(&first, &error);
                    let error = OfAll(Arc::new(error));
                    let kind = outage::kind(&error.0);
                    let failed = || Unavailable::new("PostgreSQL", error.clone()).of_kind(kind);
                    return first.into_iter().chain(later).for_each(|request| request.fail(failed()));
                }
            }
        }
    }

    /// Answers the requests that were sent, and those whose key one of them had, as far as that is known to be taken now.
    /// Gives back the rest.
    fn tell(&self, sent: Vec<Request>, mut later: Vec<Request>, mut answer: Answer) -> Vec<Request> {
        for (request, verdict) in sent.into_iter().zip(answer.verdicts.drain(..)) {
            match verdict {
                Some(verdict) => self.answer(request, verdict),
                None => request.fail(Undone::Busy.unavailable()),
            }
        }
        for request in later.extract_if(.., |request| answer.claim(&request.asked).is_some()) {
            if let Some(claim) = answer.claim(&request.asked) {
                self.answer(request, Verdict::Taken(claim));
            }
        }
        later
    }

    fn answer(&self, request: Request, verdict: Verdict) {
        let Request { asked, caller, .. } = request;
        if let Verdict::Run(..) = verdict {
            // By its budget there may be more than a take was refused for.
            let refusals = self.0.coalescer.refusals();
            asked.take.lines().iter().for_each(|line| refusals.forget(&line.scope, line.key));
        }
        if let Err(Ok((Verdict::Run(ticket, _), asked))) = caller.send(Ok((verdict, asked))) {
            self.undo(ticket, asked);
        }
    }

    /// Counts those that the statement which failed may have admitted.
    fn fail(&self, sent: &[Request], error: &CallError) {
        if may_be_done(error) {
            self.0.unanswered.fetch_add(sent.len() as u64, Ordering::Relaxed);
        }
    }

    /// Nobody waits for this any more, and it was admitted: gives back what was debited, and frees the key. Where that fails,
    /// the tokens stay spent and the lease lapses.
    fn undo(&self, ticket: Ticket, asked: Asked) {
        self.0.coalescer.abandoned(asked.take, false);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let shared = self.0.clone();
            runtime.spawn(async move {
                if let Err(error) = shared.records.release(&shared.database, &ticket, asked.now).await {
                    tracing::debug!(error = %admit::Causes(&error), "a key that nobody waits for was not freed");
                }
            });
        }
    }
}

impl Request {
    fn is_wanted(&self) -> bool {
        !self.caller.is_closed()
    }

    fn fail(self, cause: Unavailable) {
        let _ = self.caller.send(Err(cause)); // Who went away needs no answer.
    }
}

/// A caller that waits. If it goes away, what it was granted is undone.
struct Waiting<'a> {
    answer: oneshot::Receiver<Answered>,
    answered: bool,
    admissions: &'a Admissions,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.answer.close();
        if let Ok(Ok((Verdict::Run(ticket, _), asked))) = self.answer.try_recv() {
            self.admissions.undo(ticket, asked);
        }
    }
}

impl fmt::Debug for Admissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admissions").field("waiting", &self.0.queue.len()).finish_non_exhaustive()
    }
}
