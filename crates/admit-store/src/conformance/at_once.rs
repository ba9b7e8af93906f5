//! Takes and refunds that are asked for at once: the same answers as one after the other, in the order in which they came.

use std::time::Duration;

use admit::{Charge, Cost, Decision, Now, TakeError};
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use proptest::prelude::*;

use super::differential::{KEYS, Model, key, same, same_buckets, shown};
use super::property::hold;
use super::{ALPHA, BETA, START, Store, budget};

/// Budgets that differ on one bucket.
const BUDGETS: [&str; 4] = ["10/second", "3/second burst 7", "0.3/second burst 20", "100/minute burst 5"];

/// Doubles whose sums depend on their order, and more than some of the budgets ever hold.
const COSTS: [f64; 5] = [1.0, 0.1, 0.7, 3.0, 12.0];

#[derive(Clone, Debug)]
enum Step {
    Take(Vec<Charge>),
    Refund(Vec<Charge>),
}

/// Some microseconds later, what is asked for at that moment.
fn round() -> impl Strategy<Value = (u64, Vec<Step>)> {
    let one = (any::<bool>(), 0..KEYS, prop::sample::select(&COSTS[..]), prop::sample::select(&BUDGETS[..]));
    let charge = one.prop_map(|(alpha, i, cost, text)| Charge {
        scope: if alpha { ALPHA } else { BETA },
        key: key(i),
        cost: Cost::new(cost).unwrap(),
        budget: budget(text),
    });
    let charges = prop_oneof![
        3 => prop::collection::vec(charge.clone(), 1),
        1 => prop::collection::vec(charge, 1..4),
    ];
    let step = prop_oneof![
        4 => charges.clone().prop_map(Step::Take),
        1 => charges.prop_map(Step::Refund),
    ];
    // Some of them many times over, as on a hot bucket.
    let some = (step, 1..6_usize).prop_map(|(step, times)| vec![step; times]);
    (0..2_000_000_u64, prop::collection::vec(some, 1..8).prop_map(|steps| steps.concat()))
}

fn ask<'s, S: Store>(
    store: &'s S,
    step: &'s Step,
    now: Now,
) -> BoxFuture<'s, Result<Option<Decision>, TakeError>> {
    match step {
        Step::Take(charges) => async move { store.take(charges, now).await.map(Some) }.boxed(),
        Step::Refund(charges) => async move { store.refund(charges).await.map(|()| None) }.boxed(),
    }
}

async fn case<S: Store>(store: &S, rounds: Vec<(u64, Vec<Step>)>) -> Result<(), String> {
    let mut model = Model::on(store).await?;
    let mut now = START;
    for (i, (later, steps)) in rounds.into_iter().enumerate() {
        now = now.saturating_add(Duration::from_micros(later));
        let answers = join_all(steps.iter().map(|step| ask(store, step, Now::At(now)))).await;
        for (j, (step, answer)) in steps.iter().zip(answers).enumerate() {
            let law = match step {
                Step::Take(charges) => model.decide(charges, now, true).map(Some),
                Step::Refund(charges) => model.refund(charges).map(|()| None),
            };
            let what = format!("round {i}, operation {j}");
            same(&what, shown(answer)?, shown(law.map_err(TakeError::from))?)?;
        }
        same_buckets(&format!("round {i}"), store, &model).await?;
    }
    Ok(())
}

/// Takes and refunds, by budgets that differ, all on their way before the first is answered.
pub async fn what_comes_at_once_is_decided_in_order<S: Store>(store: S) {
    let rounds = prop::collection::vec(round(), 1..4);
    hold("at once", rounds, async |rounds| case(&store, rounds).await).await;
}
