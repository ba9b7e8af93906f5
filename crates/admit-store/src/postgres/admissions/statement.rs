//! The statement of a batch of admissions, and its answer.

use std::collections::HashMap;

use admit::idempotency::{Claim, Fence, OnLapse, Record, RecordKey, State, Ticket};
use admit::{Decision, Now, Timestamp, Verdict};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::batch::{Batch, Outcome, Want};
use super::super::database::{CallError, Param, get, micros, timestamp};
use super::super::held::Buckets;
use super::super::records::{RECORD, record};
use super::{Admissions, Asked, Request};

/// Where the columns of a record begin.
const RECORD_AT: usize = 7;

pub(super) fn sql(schema: &str) -> String {
    format!(
        "SELECT decided_at, bucket_tokens, bucket_refilled_at, granted, claimed_keys, fences, taken_number, {RECORD} \
         FROM {schema}.admit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)"
    )
}

/// What a batch came to.
pub(super) struct Answer {
    /// In the order of the requests; nothing for one of whose buckets somebody else holds one.
    pub(super) verdicts: Vec<Option<Verdict>>,
    at: Timestamp,
    /// Of the keys that are taken now; responses without headers and body.
    records: HashMap<RecordKey, Record>,
}

impl Answer {
    /// What a request is told whose key the `first` in the batch had, which was told this; nothing if that does not follow.
    /// Mostly the key is taken now. If not, what the same request was told holds for this one too.
    pub(super) fn follows(
        &self,
        asked: &Asked,
        first: &Asked,
        told: Option<&Verdict>,
    ) -> Option<Option<Verdict>> {
        let record = self.records.get(&asked.key);
        if let Some(claim) = record.and_then(|record| record.look(asked.fingerprint, &asked.terms, self.at)) {
            return Some(Some(Verdict::Taken(claim)));
        }
        let is_of_one_run = (asked.fingerprint, &asked.terms) == (first.fingerprint, &first.terms);
        let is_same = match told {
            None | Some(Verdict::Refused(_)) => asked.take == first.take,
            Some(Verdict::Taken(_)) => true, // A record that is over and that somebody else has locked.
            Some(Verdict::Run(..)) => false,
        };
        (is_of_one_run && is_same).then(|| told.cloned())
    }
}

impl Admissions {
    /// One statement for requests of different keys and of one moment.
    pub(super) async fn send(
        &self,
        requests: &[Request],
        hasty: bool,
        over: &Buckets,
    ) -> Result<Answer, CallError> {
        let now = requests.first().map_or(Now::Store, |request| request.asked.now);
        let asked = || requests.iter().map(|request| &request.asked);
        let batch = Batch::of(asked().map(|asked| (Want::Debit, &asked.take)))?;
        let keys: Vec<&[u8]> = asked().map(|asked| asked.key.as_bytes().as_slice()).collect();
        let fingerprints: Vec<&[u8]> = asked().map(|asked| asked.fingerprint.as_bytes().as_slice()).collect();
        let leases: Vec<i64> = asked().map(|asked| micros(asked.terms.lease)).collect();
        let ttls: Vec<i64> = asked().map(|asked| micros(asked.terms.ttl)).collect();
        let stay_blocked: Vec<bool> =
            asked().map(|asked| asked.terms.on_lapse == OnLapse::StayBlocked).collect();
        let (runs, told) = (batch.runs()?, batch.told(now, &self.0.database, hasty, over)?);
        let asked_of_keys: [Param<'_>; 6] = [
            (&keys, Type::BYTEA_ARRAY),
            (&fingerprints, Type::BYTEA_ARRAY),
            (&leases, Type::INT8_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&stay_blocked, Type::BOOL_ARRAY),
            (&runs, Type::INT4_ARRAY),
        ];
        let params: Vec<_> = asked_of_keys.into_iter().chain(told.params()).collect();
        let rows = self.0.database.rows(&self.0.statement, &params).await?;
        let Some((last, taken)) = rows.split_last() else { return Err(wrong("there is no row")) };
        let at = timestamp(get(last, 0)?)?;
        let mut answer = Answer { verdicts: vec![None; requests.len()], at, records: HashMap::new() };
        for row in taken {
            answer.taken(requests, row)?;
        }
        if taken.len() < requests.len() {
            let takes: Vec<_> = (asked().zip(&answer.verdicts))
                .map(|(asked, taken)| taken.is_none().then_some((Want::Debit, &asked.take)))
                .collect();
            let outcomes = batch.answer_of(takes.into_iter(), last, now == Now::Store)?.outcomes;
            answer.decided(requests, outcomes, last)?;
        }
        Ok(answer)
    }
}

impl Answer {
    /// A row that tells of a key that is taken.
    fn taken(&mut self, requests: &[Request], row: &Row) -> Result<(), CallError> {
        let number = usize::try_from(get::<i64>(row, 6)?).unwrap_or_default();
        let Some(Request { asked, .. }) = number.checked_sub(1).and_then(|i| requests.get(i)) else {
            return Err(wrong("a key was told that was not asked for"));
        };
        let record = record(row, RECORD_AT)?.ok_or_else(|| wrong("the record is missing"))?;
        // A record that is over and that somebody else has locked: most likely it is being claimed.
        let claim = record.look(asked.fingerprint, &asked.terms, self.at);
        let claim = claim.unwrap_or(Claim::InFlight { lease_left: std::time::Duration::ZERO });
        self.verdicts[number - 1] = Some(Verdict::Taken(claim));
        self.records.insert(asked.key, record);
        Ok(())
    }

    /// What the takes of the others came to, and the claims of those that were granted.
    fn decided(&mut self, requests: &[Request], outcomes: Vec<Outcome>, row: &Row) -> Result<(), CallError> {
        let keys = get::<Option<Vec<&[u8]>>>(row, 4)?.unwrap_or_default();
        let fences = get::<Option<Vec<i64>>>(row, 5)?.unwrap_or_default();
        let mut claimed: HashMap<&[u8], i64> = keys.into_iter().zip(fences).collect();
        let open = self.verdicts.iter_mut().zip(requests).filter(|(verdict, _)| verdict.is_none());
        for ((verdict, Request { asked, .. }), outcome) in open.zip(outcomes) {
            *verdict = match outcome {
                Outcome::Busy => None,
                Outcome::GivenBack => return Err(wrong("a take was given back")),
                Outcome::Decided(Decision::Refused(refusal)) => Some(Verdict::Refused(refusal)),
                Outcome::Decided(Decision::Granted(grant)) => {
                    let fence = claimed.remove(asked.key.as_bytes().as_slice());
                    let fence = fence.ok_or_else(|| wrong("what was granted was not claimed"))?;
                    let fence = Fence::new(fence);
                    let lease_until = self.at.saturating_add(asked.terms.lease);
                    let record = Record {
                        fingerprint: asked.fingerprint,
                        fence,
                        state: State::Running { lease_until },
                        expires_at: self.at.saturating_add(asked.terms.ttl),
                    };
                    self.records.insert(asked.key, record);
                    Some(Verdict::Run(Ticket { key: asked.key, fence, lease_until }, grant))
                }
            };
        }
        match claimed.is_empty() {
            true => Ok(()),
            false => Err(wrong("what was not granted was claimed")),
        }
    }
}

fn wrong(what: &'static str) -> CallError {
    CallError::Answer(what.into())
}
