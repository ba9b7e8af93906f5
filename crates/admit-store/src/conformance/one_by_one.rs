//! An admission comes to what look, take and claim come to one after the other: the answer, the buckets and the record.

use std::collections::BTreeMap;

use admit::idempotency::{Claim, Fence, Fingerprint, Outcome, Record, RecordKey, Terms, Ticket};
use admit::{AdmissionError, Charge, ChargeError, Decision, IdempotencyError, Now, Timestamp, Verdict};
use proptest::prelude::*;

use super::differential::{
    KEYS, MAX_OPERATIONS, Model, Step, charges, key, outcome, record_key, same, shown, step, terms,
};
use super::property::hold;
use super::{ALPHA, BETA, START, Store, rules};

#[derive(Clone, Debug)]
enum Op {
    Admit {
        key: usize,
        other: bool,
        charges: Vec<Charge>,
    },
    /// Of a request without a key.
    Take(Vec<Charge>),
    /// One of the tickets so far.
    Complete(prop::sample::Index, Outcome),
    Release(prop::sample::Index),
}

fn op() -> impl Strategy<Value = Op> {
    let admit = (0..KEYS, prop::bool::weighted(0.1), prop_oneof![1 => Just(vec![]), 9 => charges()]);
    prop_oneof![
        8 => admit.prop_map(|(key, other, charges)| Op::Admit { key, other, charges }),
        2 => charges().prop_map(Op::Take),
        2 => (any::<prop::sample::Index>(), outcome()).prop_map(|(i, outcome)| Op::Complete(i, outcome)),
        2 => any::<prop::sample::Index>().prop_map(Op::Release),
    ]
}

/// The three calls, on the model. `fence` is the one that the store gave: which that is is its own affair.
fn law(
    model: &mut Model,
    records: &mut BTreeMap<RecordKey, Record>,
    (key, fingerprint, terms): (RecordKey, Fingerprint, &Terms),
    charges: &[Charge],
    fence: Fence,
    now: Timestamp,
) -> Result<Verdict, ChargeError> {
    model.rules.prepare(charges)?;
    if let Some(taken) = records.get(&key).and_then(|record| record.look(fingerprint, terms, now)) {
        return Ok(Verdict::Taken(taken));
    }
    let grant = match model.decide(charges, now, true)? {
        Decision::Refused(refusal) => return Ok(Verdict::Refused(refusal)),
        Decision::Granted(grant) => grant,
    };
    let (claim, record) = Record::claim(records.get(&key), key, fingerprint, fence, terms, now);
    records.extend(record.map(|record| (key, record)));
    match claim {
        Claim::Run(ticket) => Ok(Verdict::Run(ticket, grant)),
        taken => Ok(Verdict::Taken(taken)),
    }
}

fn used(result: Result<(), IdempotencyError>) -> Result<bool, String> {
    match result {
        Ok(()) => Ok(true),
        Err(IdempotencyError::TicketLost) => Ok(false),
        Err(IdempotencyError::Unavailable(error)) => Err(format!("{error:?}")),
    }
}

async fn case<S: Store>(store: &S, operations: Vec<(Step, Terms, Op)>) -> Result<(), String> {
    store.delete_expired(Now::At(Timestamp::MAX)).await.map_err(|error| format!("{error:?}"))?;
    store.delete_idle(Now::At(Timestamp::MAX)).await.map_err(|error| format!("{error:?}"))?;
    let mut model = Model { rules: rules(), buckets: BTreeMap::new() };
    let mut records = BTreeMap::<RecordKey, Record>::new();
    let mut tickets = Vec::<Ticket>::new();
    let mut last_fence = Fence::new(i64::MIN);
    let mut now = START;
    for (i, (step, terms, operation)) in operations.into_iter().enumerate() {
        now = step.from(now);
        let (at, what) = (Now::At(now), format!("operation {i}"));
        match &operation {
            Op::Admit { key, other, charges } => {
                let key = record_key(*key);
                let fingerprint = Fingerprint::of(if *other { "other" } else { "usual" });
                let verdict = store.admit(charges, &key, &fingerprint, &terms, at).await;
                let verdict = verdict.map_err(|error| match error {
                    AdmissionError::Budgets(error) => error,
                    AdmissionError::Records(error) => error.into(),
                });
                let fence = match &verdict {
                    Ok(Verdict::Run(ticket, _)) => {
                        same("the fence grows", ticket.fence > last_fence, true)?;
                        last_fence = ticket.fence;
                        tickets.push(ticket.clone());
                        ticket.fence
                    }
                    _ => last_fence,
                };
                let law = law(&mut model, &mut records, (key, fingerprint, &terms), charges, fence, now);
                same(&what, shown(verdict)?, shown(law.map_err(Into::into))?)?;
            }
            Op::Take(charges) => {
                let law = model.decide(charges, now, true).map_err(Into::into);
                same(&what, shown(store.take(charges, at).await)?, shown(law)?)?;
            }
            Op::Complete(which, outcome) if !tickets.is_empty() => {
                let ticket = tickets[which.index(tickets.len())].clone();
                let law = (records.get(&ticket.key).cloned())
                    .and_then(|record| record.complete(&ticket, outcome.clone(), &terms, now).ok());
                same(&what, used(store.complete(&ticket, outcome, &terms, at).await)?, law.is_some())?;
                records.extend(law.map(|record| (ticket.key, record)));
            }
            Op::Release(which) if !tickets.is_empty() => {
                let ticket = tickets[which.index(tickets.len())].clone();
                let law = records.get(&ticket.key).is_some_and(|record| record.release(&ticket, now).is_ok());
                same(&what, used(store.release(&ticket, at).await)?, law)?;
                if law {
                    records.remove(&ticket.key);
                }
            }
            _ => {} // No ticket yet.
        }
        for key in (0..KEYS).map(record_key) {
            let record = store.record(&key).await;
            same(&format!("{key:?} after {what}"), record.as_ref(), records.get(&key))?;
        }
        for scope in [ALPHA, BETA] {
            for key in (0..KEYS).map(key) {
                let bucket = store.bucket(&scope, &key).await;
                let law = model.buckets.get(&(scope.clone(), key)).copied();
                same(&format!("{scope} {key} after {what}"), bucket, law)?;
            }
        }
    }
    Ok(())
}

/// Admissions, with takes, completions and releases in between.
pub async fn an_admission_is_a_look_a_take_and_a_claim<S: Store>(store: S) {
    let operations = prop::collection::vec((step(), terms(), op()), 1..=MAX_OPERATIONS);
    hold("admissions", operations, async |operations| case(&store, operations).await).await;
}
