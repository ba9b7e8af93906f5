//! What the tests need from the operating system: found, or installed with its package manager.

use std::process::Command;

use admit_testbed::Programs;
use anyhow::{Context, Result, bail};

use crate::run::{output, say, step, succeeds};

/// Makes sure that the test servers find PostgreSQL and PgBouncer, installing them if `may_install`.
pub(crate) fn servers(may_install: bool) -> Result<()> {
    let programs = match Programs::find() {
        Err(_) if may_install => {
            install()?;
            Programs::find()
        }
        found => found,
    };
    let Programs { postgres, pgbouncer } = programs.context("the tests need PostgreSQL and PgBouncer")?;
    say(format!("PostgreSQL {} in {}, {}", postgres.version, postgres.dir.display(), pgbouncer.display()));
    Ok(())
}

fn install() -> Result<()> {
    say(
        "installing PostgreSQL and PgBouncer; the tests start servers of their own and use none of the system's",
    );
    if succeeds(Command::new("apt-get").arg("--version")) {
        return apt_get();
    }
    if succeeds(Command::new("brew").arg("--version")) {
        let mut brew = Command::new("brew");
        brew.args(["install", "postgresql@17", "pgbouncer"]).env("NONINTERACTIVE", "1");
        return step(&mut brew);
    }
    bail!(
        "found neither apt-get nor brew; install the server programs of PostgreSQL and PgBouncer, and put their \
         directories on the PATH"
    )
}

fn apt_get() -> Result<()> {
    let root = output(Command::new("id").arg("-u")).is_some_and(|id| id == "0");
    if !root && !succeeds(Command::new("sudo").args(["-n", "true"])) {
        bail!(
            "installing needs root, and sudo is not here or asks for a password; run this, then try again:\n    \
             sudo apt-get update && sudo apt-get install --yes --no-install-recommends postgresql pgbouncer"
        );
    }
    let run = |args: &[&str]| {
        let mut command = Command::new(if root { "env" } else { "sudo" });
        if !root {
            command.args(["-n", "env"]);
        }
        // A lock that another run of apt-get holds is waited for, to a bound.
        command
            .args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=300"])
            .args(args);
        step(&mut command)
    };
    run(&["update"])?;
    run(&["install", "--yes", "--no-install-recommends", "postgresql", "pgbouncer"])
}
