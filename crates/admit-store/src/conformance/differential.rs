//! Random operations at random moments, on a store and on the pure law: the same answers, and the same state to the bit.

use std::collections::BTreeMap;
use std::time::Duration;

use admit::idempotency::{
    Claim, Fence, Fingerprint, OnLapse, Outcome, Record, RecordKey, Response, Terms, Ticket,
};
use admit::{
    Bucket, Charge, ChargeError, Cost, Decision, IdempotencyError, Key, Now, Prepared, Rules, Scope,
    TakeError, Timestamp,
};
use proptest::prelude::*;

use super::property::hold;
use super::{ALPHA, BETA, START, Store, budget, rules};

const BUDGETS: [&str; 6] = [
    "10/second",
    "7/minute burst 3",
    "256KiB/second burst 1MiB",
    "0.3/second burst 2",
    "1000/hour burst 10.5",
    "1/hour",
];
pub(super) const KEYS: usize = 3;
pub(super) const MAX_OPERATIONS: usize = 24;

/// How `now` moves before an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Forward(u64),
    Back(u64),
}

impl Step {
    pub(super) fn from(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Forward(micros) => now.saturating_add(Duration::from_micros(micros)),
            Self::Back(micros) => now.saturating_sub(Duration::from_micros(micros)),
        }
    }
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Forward(0)),
        2 => (0..3_u64).prop_map(Step::Forward),
        6 => (0..2_000_000_u64).prop_map(Step::Forward),
        2 => (0..2_000_000_u64).prop_map(Step::Back),
        2 => (0..10_000_000_000_u64).prop_map(Step::Forward),
        1 => (0..10_000_000_000_u64).prop_map(Step::Back),
    ]
}

#[derive(Clone, Debug)]
enum BudgetOp {
    Take(Vec<Charge>),
    Peek(Vec<Charge>),
    Refund(Vec<Charge>),
    DeleteIdle,
}

pub(super) fn key(i: usize) -> Key {
    Key::hashed([i as u8])
}

fn cost(budget: usize) -> impl Strategy<Value = f64> {
    let burst = super::budget(BUDGETS[budget]).burst().tokens();
    prop_oneof![
        4 => 0.0..burst,
        3 => 0.0..burst / 4.0,
        2 => (0..4_u32).prop_map(f64::from),
        1 => (0..1_500_000_u32).prop_map(f64::from),
        1 => Just(burst),
        1 => Just(1.0 / 3.0),
    ]
}

/// Charges of one take. Those on one bucket mostly agree on its budget, or the take would be a mistake.
pub(super) fn charges() -> impl Strategy<Value = Vec<Charge>> {
    let one = (any::<bool>(), 0..KEYS, 0..BUDGETS.len(), prop::bool::weighted(0.02));
    let one = one.prop_flat_map(|(alpha, i, chosen, odd)| {
        let usual = (i + usize::from(alpha) + chosen / 3) % BUDGETS.len();
        let budget = if odd { chosen } else { usual };
        cost(budget).prop_map(move |cost| Charge {
            scope: if alpha { ALPHA } else { BETA },
            key: key(i),
            cost: Cost::new(cost).unwrap(),
            budget: super::budget(BUDGETS[budget]),
        })
    });
    prop::collection::vec(one, 1..=4)
}

fn budget_op() -> impl Strategy<Value = BudgetOp> {
    prop_oneof![
        12 => charges().prop_map(BudgetOp::Take),
        2 => charges().prop_map(BudgetOp::Peek),
        2 => charges().prop_map(BudgetOp::Refund),
        1 => Just(BudgetOp::DeleteIdle),
    ]
}

/// What every store must be equal to: a map, and the functions of the core.
pub(super) struct Model {
    pub(super) rules: Rules,
    pub(super) buckets: BTreeMap<(Scope, Key), Bucket>,
}

impl Model {
    /// Of a store that is made empty for it.
    pub(super) async fn on<S: Store>(store: &S) -> Result<Self, String> {
        store.delete_idle(Now::At(Timestamp::MAX)).await.map_err(|error| format!("{error:?}"))?;
        Ok(Self { rules: rules(), buckets: BTreeMap::new() })
    }

    pub(super) fn decide(
        &mut self,
        charges: &[Charge],
        now: Timestamp,
        write: bool,
    ) -> Result<Decision, ChargeError> {
        let take = match self.rules.prepare(charges)? {
            Prepared::Decided(decision) => return Ok(decision),
            Prepared::Ask(take) => take,
        };
        let places = take.lines().iter().map(|line| (line.scope.clone(), line.key));
        let found: Vec<_> = places.clone().map(|place| self.buckets.get(&place).copied()).collect();
        if !write {
            return Ok(take.peek(now, &found));
        }
        let (decision, debited) = take.decide(now, &found);
        self.buckets.extend(places.zip(debited.into_iter().flatten()));
        Ok(decision)
    }

    pub(super) fn refund(&mut self, charges: &[Charge]) -> Result<(), ChargeError> {
        for line in self.rules.prepare_refund(charges)?.lines() {
            self.buckets
                .entry((line.scope.clone(), line.key))
                .and_modify(|bucket| *bucket = bucket.refund(line.cost, line.budget));
        }
        Ok(())
    }

    fn delete_idle(&mut self, now: Timestamp) -> u64 {
        let before = self.buckets.len();
        let retention = self.rules.retention.duration();
        self.buckets.retain(|_, bucket| now.since(bucket.refilled_at) <= retention);
        (before - self.buckets.len()) as u64
    }
}

/// Answers in a form that shows every bit: Rust prints doubles so that they read back as they were.
pub(super) fn shown<T: std::fmt::Debug>(result: Result<T, TakeError>) -> Result<String, String> {
    match result {
        Ok(value) => Ok(format!("{value:?}")),
        Err(TakeError::Charge(mistake)) => Ok(format!("{mistake:?}")),
        Err(TakeError::Unavailable(error)) => Err(format!("{error:?}")),
    }
}

pub(super) fn same<T: PartialEq + std::fmt::Debug>(what: &str, store: T, law: T) -> Result<(), String> {
    if store == law { Ok(()) } else { Err(format!("{what}: the store has\n{store:?}\nthe law\n{law:?}")) }
}

/// Every bucket of the store is that of the model.
pub(super) async fn same_buckets<S: Store>(what: &str, store: &S, model: &Model) -> Result<(), String> {
    let bits = |bucket: Bucket| (bucket.tokens.to_bits(), bucket.refilled_at, bucket.tokens);
    for scope in [ALPHA, BETA] {
        for key in (0..KEYS).map(key) {
            let law = model.buckets.get(&(scope.clone(), key)).copied().map(bits);
            let bucket = store.bucket(&scope, &key).await.map(bits);
            same(&format!("{scope} {key} after {what}"), bucket, law)?;
        }
    }
    Ok(())
}

async fn budget_case<S: Store>(store: &S, operations: Vec<(Step, BudgetOp)>) -> Result<(), String> {
    let mut model = Model::on(store).await?;
    let mut now = START;
    for (i, (step, operation)) in operations.into_iter().enumerate() {
        now = step.from(now);
        let what = format!("operation {i}");
        match &operation {
            BudgetOp::Take(charges) => {
                let law = model.decide(charges, now, true).map_err(TakeError::from);
                same(&what, shown(store.take(charges, Now::At(now)).await)?, shown(law)?)?;
            }
            BudgetOp::Peek(charges) => {
                let law = model.decide(charges, now, false).map_err(TakeError::from);
                same(&what, shown(store.peek(charges, Now::At(now)).await)?, shown(law)?)?;
            }
            BudgetOp::Refund(charges) => {
                let law = model.refund(charges).map_err(TakeError::from);
                same(&what, shown(store.refund(charges).await)?, shown(law)?)?;
            }
            BudgetOp::DeleteIdle => {
                let deleted = store.delete_idle(Now::At(now)).await.map_err(|error| format!("{error:?}"))?;
                same(&what, deleted, model.delete_idle(now))?;
            }
        }
        same_buckets(&what, store, &model).await?;
    }
    Ok(())
}

/// Takes, peeks, refunds and sweeps.
pub async fn budgets_follow_the_law_to_the_bit<S: Store>(store: S) {
    assert!(BUDGETS.iter().all(|text| rules().retention.allows(budget(text))));
    let operations = prop::collection::vec((step(), budget_op()), 1..=MAX_OPERATIONS);
    hold("budgets", operations, async |operations| budget_case(&store, operations).await).await;
}

#[derive(Clone, Debug)]
enum RecordOp {
    Look(usize, bool),
    Claim(usize, bool),
    /// On one of the tickets so far.
    Renew(prop::sample::Index),
    Complete(prop::sample::Index, Outcome),
    Release(prop::sample::Index),
    DeleteExpired,
}

pub(super) fn outcome() -> impl Strategy<Value = Outcome> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..20);
    let headers = prop::collection::vec(("[a-z-]{1,9}", bytes()), 0..3);
    prop_oneof![
        4 => (100..600_u16, headers, bytes())
            .prop_map(|(status, headers, body)| Outcome::Response(Response { status, headers, body })),
        1 => (100..600_u16).prop_map(|status| Outcome::Tombstone { status }),
    ]
}

fn record_op() -> impl Strategy<Value = RecordOp> {
    prop_oneof![
        2 => (0..KEYS, prop::bool::weighted(0.1)).prop_map(|(key, other)| RecordOp::Look(key, other)),
        6 => (0..KEYS, prop::bool::weighted(0.1)).prop_map(|(key, other)| RecordOp::Claim(key, other)),
        2 => any::<prop::sample::Index>().prop_map(RecordOp::Renew),
        3 => (any::<prop::sample::Index>(), outcome()).prop_map(|(i, outcome)| RecordOp::Complete(i, outcome)),
        2 => any::<prop::sample::Index>().prop_map(RecordOp::Release),
        1 => Just(RecordOp::DeleteExpired),
    ]
}

pub(super) fn terms() -> impl Strategy<Value = Terms> {
    (1..2_000_u64, 1..4_000_u64, any::<bool>()).prop_map(|(lease, ttl, blocks)| Terms {
        lease: Duration::from_millis(lease),
        ttl: Duration::from_millis(ttl),
        on_lapse: if blocks { OnLapse::StayBlocked } else { OnLapse::RunAgain },
    })
}

pub(super) fn record_key(i: usize) -> RecordKey {
    RecordKey::new("tenant", "POST", "/", &i.to_string())
}

fn answer<T>(result: Result<T, IdempotencyError>) -> Result<Option<T>, String> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(IdempotencyError::TicketLost) => Ok(None),
        Err(IdempotencyError::Unavailable(error)) => Err(format!("{error:?}")),
    }
}

async fn record_case<S: Store>(store: &S, operations: Vec<(Step, Terms, RecordOp)>) -> Result<(), String> {
    store.delete_expired(Now::At(Timestamp::MAX)).await.map_err(|error| format!("{error:?}"))?;
    let mut model = BTreeMap::<RecordKey, Record>::new();
    let mut tickets = Vec::<Ticket>::new();
    let mut last_fence = Fence::new(i64::MIN);
    let mut now = START;
    for (i, (step, terms, operation)) in operations.into_iter().enumerate() {
        now = step.from(now);
        let at = Now::At(now);
        let what = format!("operation {i}");
        let fingerprint = |other| Fingerprint::of(if other { "other" } else { "usual" });
        match &operation {
            RecordOp::Look(i, other) => {
                let (key, fingerprint) = (record_key(*i), fingerprint(*other));
                let law = model.get(&key).and_then(|record| record.look(fingerprint, &terms, now));
                let look = store.look(&key, &fingerprint, &terms, at).await;
                same(&what, look.map_err(|error| format!("{error:?}"))?, law)?;
            }
            RecordOp::Claim(i, other) => {
                let (key, fingerprint) = (record_key(*i), fingerprint(*other));
                let claim = store.claim(&key, &fingerprint, &terms, at).await;
                let claim = claim.map_err(|error| format!("{error:?}"))?;
                // Which fence a store gives is its own affair, as long as it grows.
                let fence = if let Claim::Run(ticket) = &claim { ticket.fence } else { last_fence };
                let (law, record) = Record::claim(model.get(&key), key, fingerprint, fence, &terms, now);
                same(&what, claim.clone(), law)?;
                model.extend(record.map(|record| (key, record)));
                if let Claim::Run(ticket) = claim {
                    same("the fence grows", ticket.fence > last_fence, true)?;
                    last_fence = ticket.fence;
                    tickets.push(ticket);
                }
            }
            RecordOp::Renew(which) if !tickets.is_empty() => {
                let which = which.index(tickets.len());
                let ticket = tickets[which].clone();
                let renewed = answer(store.renew(&ticket, &terms, at).await)?;
                let law = (model.get(&ticket.key).cloned())
                    .and_then(|record| record.renew(&ticket, &terms, now).ok());
                let (record, law) = law.unzip();
                same(&what, renewed.clone(), law)?;
                model.extend(record.map(|record| (ticket.key, record)));
                tickets.extend(renewed);
            }
            RecordOp::Complete(which, outcome) if !tickets.is_empty() => {
                let ticket = tickets[which.index(tickets.len())].clone();
                let law = (model.get(&ticket.key).cloned())
                    .and_then(|record| record.complete(&ticket, outcome.clone(), &terms, now).ok());
                let done = answer(store.complete(&ticket, outcome, &terms, at).await)?;
                same(&what, done.is_some(), law.is_some())?;
                model.extend(law.map(|record| (ticket.key, record)));
            }
            RecordOp::Release(which) if !tickets.is_empty() => {
                let ticket = tickets[which.index(tickets.len())].clone();
                let law = model.get(&ticket.key).is_some_and(|record| record.release(&ticket, now).is_ok());
                same(&what, answer(store.release(&ticket, at).await)?.is_some(), law)?;
                if law {
                    model.remove(&ticket.key);
                }
            }
            RecordOp::DeleteExpired => {
                let before = model.len();
                model.retain(|_, record| !record.is_expired(now));
                let deleted = store.delete_expired(at).await.map_err(|error| format!("{error:?}"))?;
                same(&what, deleted, (before - model.len()) as u64)?;
            }
            _ => {} // No ticket yet.
        }
        for key in (0..KEYS).map(record_key) {
            let record = store.record(&key).await;
            same(&format!("{key:?} after {what}"), record.as_ref(), model.get(&key))?;
        }
    }
    Ok(())
}

/// Claims, looks, renewals, completions, releases and sweeps.
pub async fn records_follow_the_state_machine<S: Store>(store: S) {
    let operations = prop::collection::vec((step(), terms(), record_op()), 1..=MAX_OPERATIONS);
    hold("records", operations, async |operations| record_case(&store, operations).await).await;
}
