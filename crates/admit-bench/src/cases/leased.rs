//! A hot bucket on PostgreSQL that is leased, against one that is in memory anyway.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use admit::{Budget, BudgetStore, Charge, Cost, Key, Now};
use admit_store::leases::{Leased, Leases};
use admit_store::memory::MemoryStore;
use admit_store::postgres::PostgresStore;
use anyhow::{Result, ensure};
use tokio::runtime::Handle;

use crate::case::{Accuracy, Bar, Case, Measure, Peer, Promise, Side, Sides, Unit};
use crate::load::callers::Callers;
use crate::load::limiter::{Limiter, SCOPE, fresh_salt, keys, rules};
use crate::postgres::{Store, server, store};

const MEASURES: &[Measure] = &[Measure::new("takes", Unit::PerSecond)];

const CALLERS: usize = 64;

/// What the bucket has at first, of 1,000,000,000: more than is taken while the case runs, and far from full, as of a full
/// bucket slices lapse.
const LEVEL: u32 = 500_000_000;

/// It refills by less than is asked for.
const BUDGET: &str = "100000/second burst 1000000000";

/// Where accuracy is counted: each of two processes may hold so much of a bucket.
const SHARE: &str = "5%";
const HELD_BY_BOTH: f64 = 2.0 * 0.05;

pub(super) fn cases() -> Vec<Case> {
    // A share of the burst, and how many tokens that is. The second is the guide's: 5% of 10,000.
    let slices = [("5%", "50,000,000", Some(Bar::AtLeast(0.5))), ("0.00005%", "500", None)];
    let case = |(share, largest, bar): (&'static str, &str, Option<Bar>)| Case {
        name: format!(
            "PostgreSQL, hot bucket of 1,000,000,000 leased in slices of up to {largest}, {CALLERS} callers"
        ),
        measures: MEASURES,
        promise: Promise::NeverOver { held: HELD_BY_BOTH },
        quick: true,
        sides: Box::new(move |runtime| sides(runtime, share, bar)),
    };
    slices.map(case).into()
}

fn sides(runtime: &Handle, share: &str, bar: Option<Bar>) -> Result<Sides> {
    let budget: Budget = BUDGET.parse()?;
    let keys = keys(fresh_salt(), 1);
    let server = server()?;
    let leased = |share: &str| -> Result<Store<Leased<PostgresStore>>> {
        let Store(store) = runtime.block_on(store(&server.url()))?;
        Ok(Store(Leased::new(store, Leases::new([(SCOPE, share.parse()?)]))))
    };
    let one = leased(share)?;
    runtime.block_on(drain(one.0.store(), keys[0], budget))?;
    let two = Two { processes: [leased(SHARE)?, leased(SHARE)?], turn: Arc::default() };
    let memory = MemoryStore::new(rules()?);
    runtime.block_on(drain(&memory, keys[0], budget))?;
    let ours = OneAndTwo {
        one: Callers::new(one, CALLERS, keys.clone(), runtime).on(budget),
        two: Callers::new(two, CALLERS, keys.clone(), runtime),
    };
    let memory = Callers::new(Store(memory), CALLERS, keys, runtime).on(budget);
    let peers = vec![Peer::new("memory store", bar, Ok(Box::new(memory)))];
    Ok(Sides { ours: Box::new(ours), peers, servers: Box::new(server) })
}

/// Debits a full bucket down to [`LEVEL`].
async fn drain(store: &impl BudgetStore, key: Key, budget: Budget) -> Result<()> {
    let cost = Cost::new(budget.burst().tokens() - f64::from(LEVEL))?;
    let debit = Charge { cost, ..Charge::one(SCOPE, key, budget) };
    ensure!(store.take(&[debit], Now::Store).await?.is_granted(), "a full bucket refused");
    Ok(())
}

/// One for its speed, and two that hold slices of the same buckets for what they admit.
struct OneAndTwo {
    one: Callers<Store<Leased<PostgresStore>>>,
    two: Callers<Two>,
}

impl Side for OneAndTwo {
    fn run(&self, time: Duration) -> Result<Vec<f64>> {
        self.one.run(time)
    }

    fn accuracy(&self) -> Result<Option<Accuracy>> {
        self.two.be_as_fast_as(&self.one);
        self.two.accuracy()
    }
}

/// Asked in turns. As processes do, they share nothing but the server.
#[derive(Clone)]
struct Two {
    processes: [Store<Leased<PostgresStore>>; 2],
    turn: Arc<AtomicUsize>,
}

impl Limiter for Two {
    async fn take(&self, key: Key, budget: Budget) -> Result<bool> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.processes[turn % 2].take(key, budget).await
    }
}
