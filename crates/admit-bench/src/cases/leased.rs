//! A hot bucket on PostgreSQL that is leased, against one that is in memory anyway.

use admit::{Budget, BudgetStore, Charge, Cost, Key, Now};
use admit_store::leases::{Leased, Leases};
use admit_store::memory::MemoryStore;
use anyhow::{Result, ensure};
use tokio::runtime::Handle;

use crate::case::{Bar, Case, Measure, Peer, Promise, Sides, Unit};
use crate::load::callers::Callers;
use crate::load::limiter::{SCOPE, fresh_salt, keys, rules};
use crate::postgres::{Store, server, store};

const MEASURES: &[Measure] = &[Measure::new("takes", Unit::PerSecond)];

const CALLERS: usize = 64;

/// What the bucket has at first, of 1,000,000,000: more than is taken while the case runs, and far from full, as of a full
/// bucket slices lapse.
const LEVEL: u32 = 500_000_000;

/// It refills by less than is asked for.
const BUDGET: &str = "100000/second burst 1000000000";

const SHARE: &str = "5%";

pub(super) fn case() -> Case {
    Case {
        name: format!("PostgreSQL, hot bucket leased, {CALLERS} callers"),
        measures: MEASURES,
        promise: Promise::NeverOver,
        quick: true,
        sides: Box::new(sides),
    }
}

fn sides(runtime: &Handle) -> Result<Sides> {
    let budget: Budget = BUDGET.parse()?;
    let keys = keys(fresh_salt(), 1);
    let server = server()?;
    let Store(shared) = runtime.block_on(store(&server.url()))?;
    runtime.block_on(drain(&shared, keys[0], budget))?;
    let leased = Leased::new(shared, Leases::new([(SCOPE, SHARE.parse()?)]));
    let memory = MemoryStore::new(rules()?);
    runtime.block_on(drain(&memory, keys[0], budget))?;
    let ours = Callers::new(Store(leased), CALLERS, keys.clone(), runtime).on(budget);
    let memory = Callers::new(Store(memory), CALLERS, keys, runtime).on(budget);
    let peers = vec![Peer::new("memory store", Some(Bar::AtLeast(0.5)), Ok(Box::new(memory)))];
    Ok(Sides { ours: Box::new(ours), peers, servers: Box::new(server) })
}

/// Debits a full bucket down to [`LEVEL`].
async fn drain(store: &impl BudgetStore, key: Key, budget: Budget) -> Result<()> {
    let cost = Cost::new(budget.burst().tokens() - f64::from(LEVEL))?;
    let debit = Charge { cost, ..Charge::one(SCOPE, key, budget) };
    ensure!(store.take(&[debit], Now::Store).await?.is_granted(), "a full bucket refused");
    Ok(())
}
