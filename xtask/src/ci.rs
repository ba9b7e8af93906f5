//! `cargo xtask ci`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::Options;
use crate::bench;
use crate::run::{cargo, say, step, succeeds_within};
use crate::test;
use crate::tools::{DENY, TYPOS, command};

/// How long fetching the advisories may take before they are given up: a network that drops packets never says no.
const FETCH_LIMIT: Duration = Duration::from_secs(60);

/// Features with which the crate of stores is used, each alone.
const STORES: [&str; 3] = ["memory", "sqlite", "postgres"];

pub(crate) fn run(options: &Options) -> Result<()> {
    let may_install = !options.no_install;
    step(&mut cargo(&["fmt", "--all", "--check"]))?;
    let typos = TYPOS.program(may_install)?;
    step(&mut command(typos, &[]))?;
    step(&mut cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"]))?;
    for store in STORES {
        let alone = ["clippy", "-p", "admit-store", "--no-default-features", "--features", store];
        step(cargo(&alone).args(["--", "-D", "warnings"]))?;
    }
    let mut doc = cargo(&["doc", "--workspace", "--all-features", "--no-deps"]);
    step(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    deny(DENY.program(may_install)?)?;
    bench::run(&bench::Options::quick(options.no_install))?;
    test::run(options) // Last, so that the run ends with the runner's own summary.
}

fn deny(program: PathBuf) -> Result<()> {
    let deny = |args: &[&str]| command(program.clone(), args);
    step(&mut deny(&["check", "bans", "licenses", "sources"]))?;
    if succeeds_within(FETCH_LIMIT, deny(&["fetch", "db"]).env("GIT_TERMINAL_PROMPT", "0")) {
        step(&mut deny(&["check", "--disable-fetch", "advisories"]))
    } else {
        say("the advisory database cannot be fetched; security advisories were NOT checked");
        Ok(())
    }
}
