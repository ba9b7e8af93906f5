//! What the tests need from the operating system: found, or installed with its package manager.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run::{output, say, step, succeeds};

/// The oldest PostgreSQL that the tests run on.
const POSTGRES_MIN: u32 = 14;

/// Where packages put PostgreSQL's server programs, which many do not put on the PATH. `*` stands for a version.
const POSTGRES_DIRS: [&str; 5] = [
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/usr/local/pgsql/bin",
];

/// Where PgBouncer is put, besides the PATH.
const PGBOUNCER_DIRS: [&str; 3] = ["/usr/sbin", "/opt/homebrew/bin", "/usr/local/bin"];

/// Finds PostgreSQL and PgBouncer, installing them if `may_install`, and returns their directories for the PATH.
pub(crate) fn servers(may_install: bool) -> Result<Vec<PathBuf>> {
    if let Ok(dirs) = find() {
        return Ok(dirs);
    }
    if may_install {
        install()?;
    }
    find().context("the tests need PostgreSQL's server programs and PgBouncer")
}

fn find() -> Result<Vec<PathBuf>> {
    let Some((postgres, version)) = postgres() else {
        bail!(
            "no initdb of PostgreSQL {POSTGRES_MIN} or newer on the PATH or in {}",
            POSTGRES_DIRS.join(", ")
        );
    };
    let Some(pgbouncer) =
        path_dirs().chain(PGBOUNCER_DIRS.map(PathBuf::from)).find(|dir| has(dir, "pgbouncer"))
    else {
        bail!("no pgbouncer on the PATH or in {}", PGBOUNCER_DIRS.join(", "));
    };
    say(format!("PostgreSQL {version} in {}, PgBouncer in {}", postgres.display(), pgbouncer.display()));
    Ok(vec![postgres, pgbouncer])
}

/// The directory and major version of PostgreSQL's server programs: those on the PATH, else the newest.
fn postgres() -> Option<(PathBuf, u32)> {
    let of_path = path_dirs().filter_map(versioned).find(|(_, version)| *version >= POSTGRES_MIN);
    let elsewhere = || {
        let dirs = POSTGRES_DIRS.iter().flat_map(|pattern| expand(pattern));
        dirs.filter_map(versioned).max_by_key(|(_, version)| *version)
    };
    of_path.or_else(elsewhere).filter(|(_, version)| *version >= POSTGRES_MIN)
}

fn versioned(dir: PathBuf) -> Option<(PathBuf, u32)> {
    if !has(&dir, "initdb") || !has(&dir, "postgres") {
        return None;
    }
    // As in "initdb (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)".
    let text = output(Command::new(dir.join("initdb")).arg("--version"))?;
    let digits = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let major = digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    Some((dir, major))
}

fn has(dir: &Path, program: &str) -> bool {
    dir.join(program).is_file()
}

fn path_dirs() -> impl Iterator<Item = PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>().into_iter()
}

/// The directories that a pattern with at most one `*` in one component names.
fn expand(pattern: &str) -> Vec<PathBuf> {
    let Some((before, after)) = pattern.split_once('*') else { return vec![pattern.into()] };
    let Some((parent, prefix)) = before.rsplit_once('/') else { return vec![] };
    let Ok(entries) = std::fs::read_dir(parent) else { return vec![] };
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path().join(after.trim_start_matches('/')))
        .collect()
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
        "found neither apt-get nor brew; install the server programs of PostgreSQL {POSTGRES_MIN} or newer and \
         PgBouncer, and put their directories on the PATH"
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
