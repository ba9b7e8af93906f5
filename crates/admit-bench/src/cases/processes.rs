//! Two processes on one bucket, against one.

use anyhow::Result;
use tokio::runtime::Handle;

use crate::case::{Bar, Case, Measure, Peer, Promise, Side, Sides, Unit};
use crate::load::processes::Processes;
use crate::part::Part;
use crate::postgres::server;

const MEASURES: &[Measure] = &[Measure::new("takes", Unit::PerSecond)];

const CALLERS: usize = 1_024;

pub(super) fn case() -> Case {
    Case {
        name: "PostgreSQL, hot bucket, 2 processes with 1,024 callers each".to_owned(),
        measures: MEASURES,
        promise: Promise::Exact,
        quick: true,
        sides: Box::new(sides),
    }
}

fn sides(_: &Handle) -> Result<Sides> {
    let server = server()?;
    let processes = |count: usize| -> Result<Box<dyn Side>> {
        let start = || Part::start(&["takes", &server.url(), &CALLERS.to_string()]);
        Ok(Box::new(Processes::new((0..count).map(|_| start()).collect::<Result<_>>()?)))
    };
    let ours = processes(2)?;
    let peers = vec![Peer::new("one process", Some(Bar::AtLeast(0.9)), processes(1))];
    Ok(Sides { ours, peers, servers: Box::new(server) })
}
