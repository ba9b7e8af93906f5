//! Where the servers' programs are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::postgres_files::run;

/// The oldest major version of PostgreSQL that the tests run on.
const OLDEST_POSTGRES: u32 = 14;

/// Where packages put PostgreSQL's server programs, which many do not put on the `PATH`. `*` stands for a version.
const POSTGRES_DIRS: [&str; 5] = [
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/usr/local/pgsql/bin",
];

/// Where PgBouncer is put, besides the `PATH`.
const PGBOUNCER_DIRS: [&str; 3] = ["/usr/sbin", "/opt/homebrew/bin", "/usr/local/bin"];

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"))
}

/// Where `cargo xtask test` puts programs that were not installed: `tools` in the target directory.
pub fn tools_dir() -> PathBuf {
    target_dir().join("tools")
}

/// Where `cargo xtask` puts a package of Python. Each has a directory of its own, as pip puts no second one beside what is
/// in a `bin` already.
pub fn python_dir(package: &str) -> PathBuf {
    tools_dir().join("python").join(package)
}

/// The programs that the test servers run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// PostgreSQL's.
    pub postgres: PostgresPrograms,
    /// PgBouncer.
    pub pgbouncer: PathBuf,
}

/// PostgreSQL's server programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresPrograms {
    /// The directory with `postgres`, `initdb` and `psql`.
    pub dir: PathBuf,
    /// As in `15.14`, `18beta1`.
    pub version: String,
}

impl Programs {
    /// Those that the test servers will run.
    ///
    /// # Errors
    /// If one is not installed, or too old; with what to do.
    pub fn find() -> anyhow::Result<Self> {
        Ok(Self { postgres: postgres()?, pgbouncer: pgbouncer()? })
    }
}

/// In the directory `ADMIT_PG_BIN`, else the first on the `PATH`, else the newest of the usual places.
pub(crate) fn postgres() -> anyhow::Result<PostgresPrograms> {
    if let Some(dir) = std::env::var_os("ADMIT_PG_BIN") {
        let found = versioned(PathBuf::from(&dir));
        let (_, programs) = found.with_context(|| {
            format!("ADMIT_PG_BIN is {}, which holds no PostgreSQL {OLDEST_POSTGRES} or newer", dir.display())
        })?;
        return Ok(programs);
    }
    let elsewhere = || {
        let dirs = POSTGRES_DIRS.iter().flat_map(|pattern| expand(pattern));
        dirs.filter_map(versioned).max_by_key(|(major, _)| *major)
    };
    let (_, programs) = path_dirs().into_iter().find_map(versioned).or_else(elsewhere).with_context(|| {
        format!(
            "the server programs of PostgreSQL {OLDEST_POSTGRES} or newer were not found; install them (Debian, \
             Ubuntu: apt-get install postgresql; Fedora: dnf install postgresql-server; macOS: brew install \
             postgresql@17), or set ADMIT_PG_BIN to the directory that holds initdb"
        )
    })?;
    Ok(programs)
}

pub(crate) fn pgbouncer() -> anyhow::Result<PathBuf> {
    let dirs = path_dirs().into_iter().chain(PGBOUNCER_DIRS.map(PathBuf::from));
    dirs.map(|dir| dir.join("pgbouncer"))
        .find(|path| path.is_file())
        .context("PgBouncer was not found; install it (apt-get install pgbouncer, brew install pgbouncer)")
}

/// The major version and the programs in `dir`, unless they are not there or too old.
fn versioned(dir: PathBuf) -> Option<(u32, PostgresPrograms)> {
    if !["postgres", "initdb", "psql"].iter().all(|program| dir.join(program).is_file()) {
        return None;
    }
    // As in "postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)".
    let text = run(Command::new(dir.join("postgres")).arg("--version")).ok()?;
    let version = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let major = version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    let programs = PostgresPrograms { version: version.to_owned(), dir };
    (major >= OLDEST_POSTGRES).then_some((major, programs))
}

pub(crate) fn path_dirs() -> Vec<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect()
}

/// The directories that a pattern with at most one `*`, at the end of a component, names.
fn expand(pattern: &str) -> Vec<PathBuf> {
    let Some((before, after)) = pattern.split_once('*') else { return vec![pattern.into()] };
    let Some((parent, prefix)) = before.rsplit_once('/') else { return vec![] };
    let Ok(entries) = fs::read_dir(Path::new(parent)) else { return vec![] };
    let named = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    named.map(|entry| entry.path().join(after.trim_start_matches('/'))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `/usr/pgsql-15/bin`, as Red Hat's packages have it, was looked for as `/usr/pgsql/15/bin`.
    #[test]
    fn a_version_stands_in_a_name_of_its_own_or_behind_a_prefix() {
        let root = tempfile::tempdir().unwrap();
        for (dir, pattern) in [("postgresql/15/bin", "postgresql/*/bin"), ("pgsql-15/bin", "pgsql-*/bin")] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
            let pattern = root.path().join(pattern);
            assert_eq!(expand(pattern.to_str().unwrap()), [root.path().join(dir)]);
        }
        assert_eq!(expand("/no/such/place-*/bin"), [] as [PathBuf; 0]);
    }
}
