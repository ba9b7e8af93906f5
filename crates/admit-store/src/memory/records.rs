//! Idempotency records in the memory of one process.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use admit::idempotency::{
    Claim, Fence, Fingerprint, Outcome, Record, RecordKey, State, Terms, Ticket, TicketLost,
};
use admit::{AdmissionError, Decision, TakeError, Timestamp, Unavailable, Verdict};

use super::full::Full;
use super::table::Table;

pub(super) struct Records {
    /// Shared, so that a response of a megabyte is copied after its shard is free for others again.
    table: Table<RecordKey, Arc<Record>>,
    max: usize,
    /// What the kept responses take.
    bytes: AtomicUsize,
    max_bytes: usize,
    last_fence: AtomicI64,
}

impl Records {
    pub(super) fn new(max: usize, max_bytes: usize) -> Self {
        Self {
            table: Table::new(max),
            max,
            bytes: AtomicUsize::new(0),
            max_bytes,
            last_fence: AtomicI64::new(0),
        }
    }

    pub(super) fn look(
        &self,
        key: RecordKey,
        fingerprint: Fingerprint,
        terms: &Terms,
        now: Timestamp,
    ) -> Option<Claim> {
        let record = self.table.lock_one(&key).get().cloned();
        record?.look(fingerprint, terms, now)
    }

    pub(super) fn claim(
        &self,
        key: RecordKey,
        fingerprint: Fingerprint,
        terms: &Terms,
        now: Timestamp,
    ) -> Result<Claim, Unavailable> {
        match self.claim_if(key, fingerprint, terms, now, || Ok::<_, Infallible>(()))? {
            Ok((claim, _)) => Ok(claim),
            Err(never) => match never {},
        }
    }

    /// Claims the key if `take` grants. Nobody sees the record until that is decided: `take` is asked under its lock, and may
    /// wait for those of buckets, but never for another record.
    pub(super) fn admit(
        &self,
        key: RecordKey,
        fingerprint: Fingerprint,
        terms: &Terms,
        now: Timestamp,
        take: impl Fn() -> Result<Decision, TakeError>,
    ) -> Result<Verdict, AdmissionError> {
        let grant = || match take() {
            Ok(Decision::Granted(grant)) => Ok(grant),
            Ok(Decision::Refused(refusal)) => Err(Ok(refusal)),
            Err(error) => Err(Err(error)),
        };
        match self.claim_if(key, fingerprint, terms, now, grant).map_err(AdmissionError::Records)? {
            Ok((Claim::Run(ticket), Some(grant))) => Ok(Verdict::Run(ticket, grant)),
            Ok((taken, _)) => Ok(Verdict::Taken(taken)),
            Err(refused) => Ok(Verdict::Refused(refused?)),
        }
    }

    /// Claims the key, if it is free, and if there is something that allows to; with that.
    fn claim_if<G, R>(
        &self,
        key: RecordKey,
        fingerprint: Fingerprint,
        terms: &Terms,
        now: Timestamp,
        grant: impl Fn() -> Result<G, R>,
    ) -> Result<Result<(Claim, Option<G>), R>, Unavailable> {
        if let Some(taken) = self.look(key, fingerprint, terms, now) {
            return Ok(Ok((taken, None)));
        }
        if let Some(claimed) = self.try_claim(key, fingerprint, terms, now, &grant) {
            return Ok(claimed);
        }
        self.evict(now);
        let claimed = self.try_claim(key, fingerprint, terms, now, &grant);
        claimed.ok_or_else(|| Full { what: "records", max: self.max }.into())
    }

    /// Nothing if the key is free and there is no room; then nothing was granted.
    fn try_claim<G, R>(
        &self,
        key: RecordKey,
        fingerprint: Fingerprint,
        terms: &Terms,
        now: Timestamp,
        grant: impl Fn() -> Result<G, R>,
    ) -> Option<Result<(Claim, Option<G>), R>> {
        let locked = self.table.lock_one(&key);
        let fence = Fence::new(self.last_fence.fetch_add(1, Ordering::Relaxed) + 1);
        // What was completed since the look is copied here: seldom.
        let existing = locked.get().map(Arc::as_ref);
        let (claim, record) = Record::claim(existing, key, fingerprint, fence, terms, now);
        let Some(record) = record else { return Some(Ok((claim, None))) };
        locked.book().ok()?;
        let grant = match grant() {
            Ok(grant) => grant,
            Err(refused) => {
                locked.unbook();
                return Some(Err(refused));
            }
        };
        if let Some(before) = locked.put_booked(Arc::new(record)) {
            self.forget(&before);
        }
        Some(Ok((claim, Some(grant))))
    }

    pub(super) fn renew(&self, ticket: &Ticket, terms: &Terms, now: Timestamp) -> Result<Ticket, TicketLost> {
        let mut locked = self.table.lock_one(&ticket.key);
        let kept = locked.get_mut().ok_or(TicketLost)?;
        let (record, ticket) = Record::clone(kept).renew(ticket, terms, now)?;
        *kept = Arc::new(record);
        Ok(ticket)
    }

    /// Where the response does not fit, a tombstone is left: the key must not run again.
    pub(super) fn complete(
        &self,
        ticket: &Ticket,
        outcome: &Outcome,
        terms: &Terms,
        now: Timestamp,
    ) -> Result<(), TicketLost> {
        let outcome = self.book(outcome.clone(), now);
        let booked = outcome_bytes(&outcome);
        let mut locked = self.table.lock_one(&ticket.key);
        let completed = locked.get_mut().ok_or(TicketLost).and_then(|kept| {
            *kept = Arc::new(Record::clone(kept).complete(ticket, outcome, terms, now)?);
            Ok(())
        });
        if completed.is_err() {
            self.bytes.fetch_sub(booked, Ordering::Relaxed);
        }
        completed
    }

    /// The outcome, its bytes counted; a tombstone if there is no room for them.
    fn book(&self, outcome: Outcome, now: Timestamp) -> Outcome {
        let more = outcome_bytes(&outcome);
        let Outcome::Response(response) = &outcome else { return outcome };
        if !self.reserve_bytes(more) {
            self.evict(now);
            if !self.reserve_bytes(more) {
                return Outcome::Tombstone { status: response.status };
            }
        }
        outcome
    }

    fn reserve_bytes(&self, more: usize) -> bool {
        let room = |bytes: usize| bytes.checked_add(more).filter(|&sum| sum <= self.max_bytes);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    pub(super) fn release(&self, ticket: &Ticket, now: Timestamp) -> Result<(), TicketLost> {
        let locked = self.table.lock_one(&ticket.key);
        locked.get().ok_or(TicketLost)?.release(ticket, now)?;
        locked.remove();
        Ok(())
    }

    pub(super) fn delete_expired(&self, now: Timestamp) -> u64 {
        self.table.retain(|record| !self.forget_if_expired(record, now))
    }

    fn evict(&self, now: Timestamp) {
        self.table.evict(|record| self.forget_if_expired(record, now));
    }

    fn forget_if_expired(&self, record: &Record, now: Timestamp) -> bool {
        let expired = record.is_expired(now);
        if expired {
            self.forget(record);
        }
        expired
    }

    fn forget(&self, record: &Record) {
        if let State::Completed(outcome) = &record.state {
            self.bytes.fetch_sub(outcome_bytes(outcome), Ordering::Relaxed);
        }
    }

    #[cfg(feature = "conformance")]
    pub(super) fn record(&self, key: RecordKey) -> Option<Record> {
        self.table.lock_one(&key).get().map(|record| Record::clone(record))
    }
}

/// The bytes of a response's headers and body.
fn outcome_bytes(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Response(response) => {
            let headers = response.headers.iter().map(|(name, value)| name.len() + value.len());
            headers.sum::<usize>() + response.body.len()
        }
        Outcome::Tombstone { .. } => 0,
    }
}
