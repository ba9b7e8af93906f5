//! `cargo xtask test`.

use std::process::Command;

use anyhow::Result;

use crate::Options;
use crate::packages;
use crate::run::{cargo, say, step, succeeds};
use crate::tools::{NEXTEST, command, schemathesis};

pub(crate) fn run(options: &Options) -> Result<()> {
    let may_install = !options.no_install;
    packages::servers(may_install)?;
    packages::proxies(may_install)?;
    let runner_args: Vec<&str> = options.runner_args.iter().map(String::as_str).collect();

    if runner_args.is_empty() {
        step(&mut cargo(&["test", "--workspace", "--all-features", "--doc"]))?;
    }
    let mut tests = match NEXTEST.program(may_install) {
        Ok(nextest) => {
            let profile = if std::env::var_os("CI").is_some() { "ci" } else { "default" };
            command(nextest, &["nextest", "run", "--all-features", "--profile", profile])
        }
        Err(error) => {
            say(format!("{error:#}"));
            say("going on with cargo test, which runs one test program after another");
            cargo(&["test", "--all-features", "--no-fail-fast", "--all-targets"])
        }
    };
    let names_packages = runner_args.iter().any(|arg| ["-p", "--package", "--workspace"].contains(arg));
    if !names_packages {
        tests.arg("--workspace");
    }
    if std::env::var_os("ADMIT_SCHEMATHESIS").is_none()
        && !succeeds(Command::new("schemathesis").arg("--version"))
    {
        match schemathesis(may_install) {
            Ok(directory) => drop(tests.env("ADMIT_SCHEMATHESIS", directory)),
            Err(error) => say(format!("{error:#}; the description of the decision API is NOT tried")),
        }
    }
    step(tests.args(runner_args))
}
