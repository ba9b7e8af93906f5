//! Takes on PostgreSQL against the statements that a team would write by hand.

use admit::Key;
use anyhow::Result;
use tokio::runtime::Handle;

use crate::case::{Bar, Case, Measure, Peer, Promise, Side, Sides, Start, Unit};
use crate::load::callers::Callers;
use crate::load::drained::{BURST, Drained};
use crate::load::limiter::{Limiter, fresh_salt, keys};
use crate::postgres::{
    Admitting, GuardedUpdate, SelectOne, SingleStatement, Store, server, statements, store,
};

const TAKES: &[Measure] = &[Measure::new("takes", Unit::PerSecond)];
const LATENCY: &[Measure] = &[Measure::new("time a take", Unit::Microseconds)];
const ADMISSIONS: &[Measure] = &[Measure::new("time an admission", Unit::Microseconds)];
const REFUSALS: &[Measure] = &[Measure::new("refusals", Unit::PerSecond)];

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, measures, sides: Start| Case {
        name: format!("PostgreSQL, {name}"),
        measures,
        promise: Promise::Exact,
        quick: true,
        sides,
    };
    vec![
        case("hot bucket, 64 callers", TAKES, Box::new(|on| takes(on, 1, 64, Bar::AtLeast(45.0)))),
        case("hot bucket, 1,024 callers", TAKES, Box::new(hottest)),
        case("10,000 buckets, 64 callers", TAKES, Box::new(|on| takes(on, 10_000, 64, Bar::AtLeast(3.0)))),
        case(
            "10,000 buckets, 1,024 callers",
            TAKES,
            Box::new(|on| takes(on, 10_000, 1_024, Bar::AtLeast(8.0))),
        ),
        case("one caller", LATENCY, Box::new(alone)),
        case("idempotent admissions, 1 caller", ADMISSIONS, Box::new(|on| admissions(on, 1))),
        case("idempotent admissions, 64 callers", ADMISSIONS, Box::new(|on| admissions(on, 64))),
        case("idempotent admissions, 1,024 callers", ADMISSIONS, Box::new(|on| admissions(on, 1_024))),
        case("refusals of a drained bucket, 64 callers", REFUSALS, Box::new(refusals)),
    ]
}

/// Admit's store and the single statement on a server of their own.
fn takes(runtime: &Handle, buckets: u64, callers: usize, bar: Bar) -> Result<Sides> {
    let server = server()?;
    let keys = keys(fresh_salt(), buckets);
    let ours = runtime.block_on(store(&server.url()))?;
    let single = SingleStatement(runtime.block_on(statements(&server.url()))?);
    let ours = Callers::new(ours, callers, keys.clone(), runtime);
    let single = Callers::new(single, callers, keys, runtime);
    let peers = vec![Peer::new("single statement", Some(bar), Ok(Box::new(single)))];
    Ok(Sides { ours: Box::new(ours), peers, servers: Box::new(server) })
}

/// The hot bucket, also against the least that the server can be asked.
fn hottest(runtime: &Handle) -> Result<Sides> {
    const CALLERS: usize = 1_024;
    let server = server()?;
    let keys = keys(fresh_salt(), 1);
    let ours = Callers::new(runtime.block_on(store(&server.url()))?, CALLERS, keys.clone(), runtime);
    let single = SingleStatement(runtime.block_on(statements(&server.url()))?);
    let single = Callers::new(single, CALLERS, keys.clone(), runtime);
    let select = runtime.block_on(SelectOne::connect(&server.url()))?;
    let select = Callers::new(select, CALLERS, keys, runtime).unlimited();
    let peers = vec![
        Peer::new("single statement", Some(Bar::AtLeast(350.0)), Ok(Box::new(single))),
        Peer::new("SELECT 1, pipelined", Some(Bar::AtLeast(3.0)), Ok(Box::new(select))),
    ];
    Ok(Sides { ours: Box::new(ours), peers, servers: Box::new(server) })
}

fn alone(runtime: &Handle) -> Result<Sides> {
    let server = server()?;
    let keys = keys(fresh_salt(), 1);
    let single = SingleStatement(runtime.block_on(statements(&server.url()))?);
    let ours = Callers::new(runtime.block_on(store(&server.url()))?, 1, keys.clone(), runtime).latency();
    let single = Callers::new(single, 1, keys, runtime).latency();
    let peers = vec![Peer::new("single statement", Some(Bar::AtMost(1.1)), Ok(Box::new(single)))];
    Ok(Sides { ours: Box::new(ours), peers, servers: Box::new(server) })
}

/// Requests with keys on a hot bucket, each looked up, charged and claimed in one step, against a call for each of these.
fn admissions(runtime: &Handle, callers: usize) -> Result<Sides> {
    let server = server()?;
    let keys = keys(fresh_salt(), 1);
    let side = |in_one_step| -> Result<Callers<_>> {
        let Store(store) = runtime.block_on(store(&server.url()))?;
        Ok(Callers::new(Admitting { store, in_one_step }, callers, keys.clone(), runtime).latency())
    };
    let (ours, apart) = (side(true)?, side(false)?);
    let peers = vec![Peer::new("look, take and claim", None, Ok(Box::new(apart)))];
    Ok(Sides { ours: Box::new(ours), peers, servers: Box::new(server) })
}

fn refusals(runtime: &Handle) -> Result<Sides> {
    let server = server()?;
    let bucket = keys(fresh_salt(), 1)[0];
    let ours = drained(runtime.block_on(store(&server.url()))?, bucket, runtime)?;
    let guarded = runtime.block_on(async {
        let pool = statements(&server.url()).await?;
        GuardedUpdate::with_bucket(pool, bucket, BURST as f64).await
    })?;
    let guarded = drained(guarded, bucket, runtime);
    let peers = vec![Peer::new("guarded statement", Some(Bar::AtLeast(30.0)), guarded)];
    Ok(Sides { ours, peers, servers: Box::new(server) })
}

fn drained(limiter: impl Limiter, bucket: Key, runtime: &Handle) -> Result<Box<dyn Side>> {
    Ok(Box::new(Drained::new(limiter, 64, bucket, runtime)?))
}
