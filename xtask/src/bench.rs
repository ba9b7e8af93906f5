//! `cargo xtask bench`: Admit side by side with its peers.
//!
//! This installs and builds; the measuring is `crates/admit-bench`. A peer that cannot be installed is left out there.

use std::process::Command;

use admit_testbed::target_dir;
use anyhow::Result;
use clap::Args;

use crate::packages;
use crate::run::{cargo, say, step};
use crate::tools;

#[derive(Args)]
pub(crate) struct Options {
    /// Only look at accuracy, in under five minutes: what was admitted of what was allowed, one short round a case.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only the cases whose name contains this; may be given more than once.
    #[arg(long, value_name = "CASE")]
    only: Vec<String>,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Install nothing: leave out what is missing.
    #[arg(long)]
    no_install: bool,
}

impl Options {
    /// What `cargo xtask ci` runs.
    pub(crate) fn quick(no_install: bool) -> Self {
        Self { quick: true, only: Vec::new(), json: false, no_install }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let may_install = !options.no_install;
    packages::servers(may_install)?;
    for missing in [packages::load(may_install), packages::proxies(may_install)] {
        missing.unwrap_or_else(|error| say(format!("{error:#}; what needs it is NOT measured")));
    }
    step(&mut cargo(&["build", "--release", "-p", "admit-server", "-p", "admit-bench"]))?;
    if !options.quick {
        let peers = [
            tools::throttlecrab(may_install),
            tools::limitador(may_install),
            tools::rate_limiter_flexible(may_install),
            packages::redis(may_install),
        ];
        for missing in peers {
            missing.unwrap_or_else(|error| say(format!("{error:#}; it is NOT measured")));
        }
    }
    let mut bench = Command::new(target_dir().join("release/admit-bench"));
    bench.args(options.quick.then_some("--quick")).args(options.json.then_some("--json"));
    for case in &options.only {
        bench.args(["--only", case]);
    }
    step(&mut bench)
}
