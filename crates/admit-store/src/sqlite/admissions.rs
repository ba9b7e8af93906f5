//! Admissions of requests that are to run once, each in one transaction. A caller that goes away has neither spent nor claimed:
//! what it was granted is given back and its key freed, in one transaction too.

use std::sync::Arc;

use admit::idempotency::{Claim, Fingerprint, RecordKey, Terms, Ticket};
use admit::{
    AdmissionError, AdmissionStore, BudgetStore, Charge, Decision, Now, Prepared, TakeError, Timestamp,
    Verdict,
};
use rusqlite::Connection;
use scopeguard::ScopeGuard;
use tokio::sync::oneshot;

use super::takes::Shared;
use super::writer::{Failure, Job, outcome, unavailable};
use super::{SqliteStore, buckets, records};

impl AdmissionStore for SqliteStore {
    async fn admit(
        &self,
        charges: &[Charge],
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Verdict, AdmissionError> {
        let prepared = self.rules().prepare(charges).map_err(TakeError::from)?;
        let asked = Asked { prepared, key: *key, fingerprint: *fingerprint, terms: terms.clone(), now };
        let (caller, answer) = oneshot::channel();
        let shared = self.takes.shared();
        self.writer.push(Admitting { asked, verdict: None, caller, shared }).map_err(TakeError::from)?;
        // If the caller goes away when its answer is there, what it was granted is undone.
        let mut answer = scopeguard::guard(answer, |mut answer| {
            answer.close();
            if let Ok(Ok((Verdict::Run(ticket, _), asked))) = answer.try_recv() {
                let shared = self.takes.shared();
                if self.writer.push(Undoing { ticket, asked, shared: shared.clone() }).is_err() {
                    shared.lose(); // The lease lapses.
                }
            }
        });
        let answered = (&mut *answer).await;
        ScopeGuard::into_inner(answer);
        let answered = answered.unwrap_or_else(|_| Err(Failure::Ended.into()));
        Ok(answered.map(|(verdict, _)| verdict).map_err(unavailable).map_err(TakeError::from)?)
    }

    fn admits_in_one_step(&self, _: &[Charge]) -> bool {
        true
    }
}

/// What a request asks for.
struct Asked {
    prepared: Prepared,
    key: RecordKey,
    fingerprint: Fingerprint,
    terms: Terms,
    now: Now,
}

/// With what was asked for, so that whoever finds an admission abandoned can undo it.
type Answered = Result<(Verdict, Asked), Arc<Failure>>;

impl Asked {
    fn admit(&self, connection: &Connection, shared: &Shared, now: Timestamp) -> Result<Verdict, Failure> {
        let record = records::read(connection, self.key)?;
        if let Some(taken) = record.and_then(|record| record.look(self.fingerprint, &self.terms, now)) {
            return Ok(Verdict::Taken(taken));
        }
        let decision = match &self.prepared {
            Prepared::Decided(decision) => decision.clone(),
            Prepared::Ask(take) => {
                // By its budget there may come to be more than a take was refused for.
                shared.forget(take);
                buckets::take(connection, take, now)?.0
            }
        };
        let grant = match decision {
            Decision::Granted(grant) => grant,
            Decision::Refused(refusal) => return Ok(Verdict::Refused(refusal)),
        };
        match records::claim(connection, self.key, self.fingerprint, &self.terms, now)? {
            Claim::Run(ticket) => Ok(Verdict::Run(ticket, grant)),
            _ => Err(Failure::Corrupt("a key that is free and is not")), // It is the same transaction.
        }
    }
}

struct Admitting {
    asked: Asked,
    verdict: Option<Verdict>,
    caller: oneshot::Sender<Answered>,
    shared: Arc<Shared>,
}

impl Job for Admitting {
    fn is_wanted(&self) -> bool {
        !self.caller.is_closed()
    }

    fn run(&mut self, connection: &Connection) -> Result<(), Failure> {
        let now = self.shared.moment(self.asked.now);
        self.verdict = Some(self.asked.admit(connection, &self.shared, now)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), Arc<Failure>>) -> Option<Box<dyn Job>> {
        let Self { asked, verdict, caller, shared } = *self;
        let answer = outcome(committed, verdict)?;
        match caller.send(answer.map(|verdict| (verdict, asked))) {
            Err(Ok((Verdict::Run(ticket, _), asked))) => Some(Box::new(Undoing { ticket, asked, shared })),
            _ => None,
        }
    }
}

/// Gives back what nobody runs for, and frees the key.
struct Undoing {
    ticket: Ticket,
    asked: Asked,
    shared: Arc<Shared>,
}

impl Job for Undoing {
    fn is_wanted(&self) -> bool {
        true
    }

    fn can_be_late(&self) -> bool {
        false
    }

    fn run(&mut self, connection: &Connection) -> Result<(), Failure> {
        if let Prepared::Ask(take) = &self.asked.prepared {
            self.shared.forget(take);
            buckets::refund(connection, take)?;
        }
        // If the lease has lapsed meanwhile there is nothing to free.
        records::release(connection, &self.ticket, self.shared.moment(self.asked.now)).map(drop)
    }

    fn answer(self: Box<Self>, committed: Result<(), Arc<Failure>>) -> Option<Box<dyn Job>> {
        if committed.is_err() {
            self.shared.lose(); // The lease lapses.
        }
        None
    }
}
