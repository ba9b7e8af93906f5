//! Admissions of requests that are to run once: those that wait for the statement in flight share the next, as takes do.
//!
//! They have a queue of their own beside that of takes. One statement is in flight at a time; it looks keys up, takes budgets and
//! claims keys, in one transaction. Remembered refusals are not asked, as a key has to be looked up anyhow: a replay is answered
//! though its bucket is empty.

mod statement;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Terms, Ticket};
use admit::{
    AdmissionError, AdmissionStore, Charge, Clock, IdempotencyStore, MonotonicClock, Now, Prepared, Take,
    TakeError, Timestamp, Unavailable, Verdict, one_by_one,
};
use scopeguard::ScopeGuard;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};
use tokio::time::timeout;

use super::coalescer::Coalescer;
use super::database::{CallError, Database};
use super::driver::Driver;
use super::held::Buckets;
use super::outlived::{Unwanted, outlived};
use super::queue::{Drive, Queue, TooLong, Waits};
use super::undone::{OfAll, Undone, is_held, is_of_one, may_be_done};
use super::{PostgresConfig, PostgresStore, records};
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
    /// Some caller went away.
    gone: Notify,
    /// For those that fetch responses.
    looks: Semaphore,
    unanswered: AtomicU64,
}

/// A request that waits.
pub(super) struct Request {
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
        loop {
            let (key, fingerprint, take) = (*key, *fingerprint, take.clone());
            let asked = Asked { key, fingerprint, terms: terms.clone(), take, now };
            let verdict = self.admissions.admit(asked).await.map_err(TakeError::from)?;
            let Verdict::Taken(Claim::Done(Outcome::Response(_))) = verdict else { return Ok(verdict) };
            // The statement that is shared leaves the response out: many together have no bound.
            let turn = self.admissions.turn_to_look().await.map_err(AdmissionError::Records)?;
            let look = self.look(&key, &fingerprint, terms, now).await;
            drop(turn);
            if let Some(claim) = look.map_err(AdmissionError::Records)? {
                return Ok(Verdict::Taken(claim));
            }
            // The time of the record is over meanwhile.
        }
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
            gone: Notify::new(),
            looks: Semaphore::new((config.connections / 2).max(1)),
            unanswered: AtomicU64::new(0),
        }))
    }

    /// A turn to fetch a response: on half of the connections, so that the statements that are shared need not wait for one
    /// behind all who do.
    async fn turn_to_look(&self) -> Result<SemaphorePermit<'_>, Unavailable> {
        let waits = self.0.waits.to_begin;
        match timeout(waits, self.0.looks.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(Undone::from(TooLong::WithoutConnection(waits)).unavailable()),
        }
    }

    /// How many were sent whose answer never came: each may have debited and claimed, and was told as unavailable.
    pub(super) fn unanswered(&self) -> u64 {
        self.0.unanswered.load(Ordering::Relaxed)
    }

    async fn admit(&self, asked: Asked) -> Result<Verdict, Unavailable> {
        let (caller, answer) = oneshot::channel();
        let (position, drive) = self.0.queue.push(Request { asked, since: self.0.clock.now(), caller })?;
        self.spawn(drive);
        // If the caller goes away, what it was granted is undone.
        let mut answer = scopeguard::guard(answer, |mut answer| {
            answer.close();
            self.0.gone.notify_waiters();
            if let Ok(Ok((Verdict::Run(ticket, _), asked))) = answer.try_recv() {
                self.undo(ticket, asked);
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

    /// What a statement comes to, also if nobody waits for it any more: then the drive is handed on, and nobody else waits
    /// behind it either.
    async fn outlived<T>(
        &self,
        statement: impl Future<Output = Result<T, CallError>>,
        is_wanted: impl Fn() -> bool,
        drive: &mut Option<Drive>,
    ) -> Result<T, CallError> {
        outlived(statement, &self.0.gone, is_wanted, Unwanted::Cancelled, || self.spawn(drive.take())).await
    }

    /// Until all are answered, or wait again. Those that need one of the buckets that are passed `over` hear that somebody holds
    /// it. `hasty` is with hardly any wait for locks. `drive` may be handed on while they are the last that this one has to
    /// settle.
    async fn settle(
        &self,
        mut batch: Vec<Request>,
        mut hasty: bool,
        mut over: Buckets,
        drive: &mut Option<Drive>,
    ) {
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
            let is_wanted = || first.iter().chain(&later).any(Request::is_wanted);
            let answer = self.outlived(self.send(&first, hasty, &over), is_wanted, drive).await;
            ScopeGuard::into_inner(unsure);
            match answer {
                Ok(answer) => return self.tell(first, later, answer),
                // Only those that need the bucket shall suffer.
                Err(error) if !hasty && is_held(&error) => {
                    let takes = first.iter().map(|request| &request.asked.take);
                    let found = self.0.coalescer.held().found(takes, &over).await;
                    // It was a record, or what is free by now.
                    hasty = found.is_empty();
                    over.extend(found);
                    batch = first;
                    batch.extend(later);
                }
                // One request must not take the others down with it.
                Err(error) if several && (is_of_one(&error) || is_held(&error) || error.is_transient()) => {
                    self.put_back(later);
                    batch = first.split_off(first.len() / 2);
                    Box::pin(self.settle(first, hasty, over.clone(), &mut None)).await;
                }
                Err(error) => {
                    self.fail(&first, &error);
                    let error = OfAll::new(error);
                    self.put_back(later); // They were not in it.
                    return first.into_iter().for_each(|request| request.fail(error.unavailable()));
                }
            }
        }
    }

    /// Answers the requests that were sent, and those whose key one of them had, as far as that is known now. The rest waits
    /// again, behind those that came meanwhile: one statement tells only one of the requests with a key, so nobody else may have
    /// to wait for all of them.
    fn tell(&self, sent: Vec<Request>, later: Vec<Request>, answer: Answer) {
        if !later.is_empty() {
            let told = sent.iter().zip(&answer.verdicts);
            let told: HashMap<_, _> = told.map(|told| (told.0.asked.key, told)).collect();
            let follows = |request: &Request| {
                let &(first, verdict) = told.get(&request.asked.key)?;
                answer.follows(&request.asked, &first.asked, verdict.as_ref())
            };
            let mut again = Vec::new();
            for request in later {
                match follows(&request) {
                    Some(verdict) => self.verdict(request, verdict),
                    None => again.push(request),
                }
            }
            self.put_back(again);
        }
        for (request, verdict) in sent.into_iter().zip(answer.verdicts) {
            self.verdict(request, verdict);
        }
    }

    /// To be asked in a statement to come.
    fn put_back(&self, requests: Vec<Request>) {
        self.spawn(self.0.queue.put_back(requests));
    }

    fn verdict(&self, request: Request, verdict: Option<Verdict>) {
        match verdict {
            Some(verdict) => self.answer(request, verdict),
            None => request.fail(Undone::Busy.unavailable()),
        }
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
    /// the tokens stay spent, and the key is in flight until its lease lapses, or blocked until its time is over.
    fn undo(&self, ticket: Ticket, asked: Asked) {
        self.0.coalescer.abandoned(asked.take, false);
        let shared = self.0.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return shared.not_freed(&Undone::RuntimeEnded);
        };
        runtime.spawn(async move {
            if let Err(error) = shared.records.release(&shared.database, &ticket, asked.now).await {
                shared.not_freed(&error);
            }
        });
    }
}

impl Driver for Admissions {
    type Operation = Request;

    fn queue(&self) -> &Queue<Request> {
        &self.0.queue
    }

    fn max_batch(&self) -> usize {
        self.0.max_batch
    }

    fn takes(request: &Request) -> (&Take, Now) {
        (&request.asked.take, request.asked.now)
    }

    async fn run(&self, mut batch: Vec<Request>, drive: &mut Option<Drive>) {
        let begin = self.0.clock.now();
        for late in batch.extract_if(.., |request| begin.since(request.since) > self.0.waits.to_begin) {
            late.fail(Undone::from(TooLong::ToBegin(self.0.waits.to_begin)).unavailable());
        }
        let takes = batch.iter().map(|request| &request.asked.take);
        let still = async { Ok(self.0.coalescer.held().still(takes).await) };
        let is_wanted = || batch.iter().any(Request::is_wanted);
        let over = self.outlived(still, is_wanted, drive).await.unwrap_or_default();
        self.settle(batch, false, over, drive).await;
    }

    /// Their callers hear of it.
    fn lose(&self, _: Vec<Request>) {}
}

impl Shared {
    fn not_freed(&self, error: &dyn std::error::Error) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(error = %admit::Causes(error), "a key that was claimed for nobody could not be freed");
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

impl fmt::Debug for Admissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admissions").field("waiting", &self.0.queue.len()).finish_non_exhaustive()
    }
}
