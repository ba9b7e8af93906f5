//! Others that a team may have, beside PostgreSQL; they set no bar.

use anyhow::Result;
use tokio::runtime::Handle;

use crate::case::{Case, Measure, Peer, Promise, Side, Sides, Unit};
use crate::load::callers::Callers;
use crate::load::limiter::{fresh_salt, keys};
use crate::load::processes::Processes;
use crate::others::{Redis, rate_limiter_flexible};
use crate::postgres::{server, store};

const MEASURES: &[Measure] = &[Measure::new("takes", Unit::PerSecond)];

const CALLERS: usize = 64;

pub(super) fn case() -> Case {
    Case {
        name: "others, hot bucket, 64 callers".to_owned(),
        measures: MEASURES,
        promise: Promise::Exact,
        quick: false,
        sides: Box::new(sides),
    }
}

fn sides(runtime: &Handle) -> Result<Sides> {
    let server = server()?;
    let keys = keys(fresh_salt(), 1);
    let ours = Callers::new(runtime.block_on(store(&server.url()))?, CALLERS, keys.clone(), runtime);
    let flexible = || -> Result<Box<dyn Side>> {
        Ok(Box::new(Processes::new(vec![rate_limiter_flexible(&server, CALLERS)?])))
    };
    let script = || -> Result<Box<dyn Side>> {
        let script = runtime.block_on(Redis::start()?.script())?;
        Ok(Box::new(Callers::new(script, CALLERS, keys, runtime)))
    };
    let peers = vec![
        Peer::new("rate-limiter-flexible on PostgreSQL", None, flexible()),
        Peer::new("a script on Redis, in memory", None, script()),
    ];
    Ok(Sides { ours: Box::new(ours), peers, servers: Box::new(server) })
}
