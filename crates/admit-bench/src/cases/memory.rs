//! The memory store against governor, in this process.

use std::sync::Arc;

use admit::{Charge, Key, Now};
use admit_store::memory::MemoryStore;
use anyhow::Result;

use crate::case::{Bar, Case, Measure, Peer, Promise, Sides, Unit};
use crate::load::limiter::{SCOPE, fresh_salt, keys, open, rules, tight, zipf};
use crate::load::threads::{Check, Threads, governor};

const MEASURES: &[Measure] = &[Measure::new("time a take", Unit::Nanoseconds)];

/// How long the order is in which buckets are asked.
const ORDER: u64 = 1 << 20;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (which, buckets) in [("1 bucket", 1), ("100,000 buckets by Zipf's law", 100_000)] {
        for (threads, count) in [("1 thread", 1), ("2 threads", 2)] {
            cases.push(Case {
                name: format!("memory store, {which}, {threads}"),
                measures: MEASURES,
                promise: Promise::Exact,
                quick: true,
                sides: Box::new(move |_| sides(buckets, count)),
            });
        }
    }
    cases
}

fn sides(buckets: usize, threads: usize) -> Result<Sides> {
    let all = keys(fresh_salt(), buckets as u64);
    let places: Arc<[u32]> = zipf(ORDER, buckets).map(|place| place as u32).collect();
    let order: Arc<[Key]> = places.iter().map(|&place| all[place as usize]).collect();
    let threads =
        |open, tight| Threads { threads, order: order.clone(), places: places.clone(), buckets, open, tight };
    let ours = threads(admit(None)?, Box::new(|burst| admit(Some(burst))));
    let governor = threads(governor(None)?, Box::new(|burst| governor(Some(burst))));
    let peers = vec![Peer::new("governor", Some(Bar::AtMost(0.8)), Ok(Box::new(governor)))];
    Ok(Sides { ours: Box::new(ours), peers, servers: Box::new(()) })
}

/// An empty store, whose buckets hold `burst` tokens, or any number.
fn admit(burst: Option<u32>) -> Result<Check> {
    let store = MemoryStore::new(rules()?);
    let budget = burst.map_or_else(open, |burst| tight(burst.into()))?;
    Ok(Box::new(move |key| {
        let charge = Charge::one(SCOPE, *key, budget);
        // As governor's check is, not asynchronous.
        let decision = store.take_now(std::slice::from_ref(&charge), Now::Store);
        decision.is_ok_and(|decision| decision.is_granted())
    }))
}
