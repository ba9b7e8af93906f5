//! Envoy's rate limit protocol over gRPC.

use std::process::Command;

use anyhow::{Result, anyhow};
use tokio::runtime::Handle;

use crate::case::{Bar, Case, Measure, Peer, Promise, Side, Sides, Unit};
use crate::load::beside::ALLOWED;
use crate::load::envoy::{DOMAIN, Envoy, OPEN, SHUT};
use crate::part::Part;
use crate::servers::{Admit, tool};

const MEASURES: &[Measure] = &[Measure::new("calls", Unit::PerSecond)];

pub(super) fn case() -> Case {
    Case {
        name: "Envoy's rate limit service, memory store, 256 calls at once".to_owned(),
        measures: MEASURES,
        promise: Promise::Exact,
        quick: true,
        sides: Box::new(sides),
    }
}

fn sides(runtime: &Handle) -> Result<Sides> {
    let (admit, limitador, bare) = (Admit::decisions()?, limitador(), Part::start(&["envoy"])?);
    let side = |port: u16, limits: bool| -> Box<dyn Side> {
        Box::new(Envoy { port, limits, runtime: runtime.clone() })
    };
    let theirs = limitador.as_ref().map(|part| side(part.port(), true)).map_err(|error| anyhow!("{error:#}"));
    let peers = vec![
        Peer::new("limitador", Some(Bar::AtLeast(2.0)), theirs),
        Peer::new("tonic that answers OK", Some(Bar::AtLeast(0.9)), Ok(side(bare.port(), false))),
    ];
    Ok(Sides { ours: side(admit.port(), true), peers, servers: Box::new((admit, limitador, bare)) })
}

/// limitador's library in a service of its own.
fn limitador() -> Result<Part> {
    const SO_MANY: u64 = 1_000_000_000_000;
    let mut service = Command::new(tool("limitador-service")?);
    service.arg(DOMAIN).args([OPEN, &SO_MANY.to_string(), "1"]).args([SHUT, &ALLOWED.to_string(), "3600"]);
    Part::spawn(service)
}
