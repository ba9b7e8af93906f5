//! Where PostgreSQL's programs are, and a data directory to copy.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, ensure};

use crate::home::{as_server_user, server_user, short_temp_dir};

/// The directory with `postgres`, `initdb` and `psql`: `ADMIT_PG_BIN`, else the newest of the usual places, else `PATH`.
pub(crate) fn bin_dir() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("ADMIT_PG_BIN") {
        let dir = PathBuf::from(dir);
        ensure!(dir.join("initdb").is_file(), "ADMIT_PG_BIN is {}, which holds no initdb", dir.display());
        return Ok(dir);
    }
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for (parent, prefix) in [
        ("/usr/lib/postgresql", ""),
        ("/usr/pgsql", ""),
        ("/opt/homebrew/opt", "postgresql@"),
        ("/usr/local/opt", "postgresql@"),
    ] {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let version = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse().ok());
            versions.extend(version.map(|version| (version, entry.path().join("bin"))));
        }
    }
    versions.sort();
    let on_path: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    (versions.into_iter().rev().map(|(_, dir)| dir).chain(on_path))
        .find(|dir| dir.join("initdb").is_file() && dir.join("postgres").is_file())
        .context(
            "PostgreSQL's server programs were not found; install them (Debian, Ubuntu: apt-get install postgresql; \
             Fedora: dnf install postgresql-server; macOS: brew install postgresql@17), or set ADMIT_PG_BIN to the \
             directory that holds initdb",
        )
}

/// A directory that all tests of this user share.
pub(crate) fn shared_dir() -> anyhow::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let dir = short_temp_dir().join(format!("admit-testbed-{user}"));
    match fs::DirBuilder::new().mode(0o755).create(&dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error)?,
        _ => {}
    }
    ensure!(fs::symlink_metadata(&dir)?.uid() == user, "{} belongs to somebody else", dir.display());
    Ok(dir)
}

/// A fresh cluster, made once per version and user and kept, as `initdb` takes longer than all the rest.
pub(crate) fn template(bin: &Path) -> anyhow::Result<PathBuf> {
    let version = run(Command::new(bin.join("postgres")).arg("--version"))?;
    let version: String = version.chars().filter(|c| c.is_ascii_digit() || *c == '.').collect();
    let shared = shared_dir()?;
    let template = shared.join(format!("postgres-{version}"));
    if template.is_dir() {
        return Ok(template);
    }
    let lock = File::create(shared.join(format!("postgres-{version}.lock")))?;
    lock.lock()?;
    if template.is_dir() {
        return Ok(template); // Made while this waited.
    }
    let unfinished = tempfile::Builder::new().prefix("postgres-").tempdir_in(&shared)?;
    if let Some(id) = server_user() {
        std::os::unix::fs::chown(unfinished.path(), Some(id), Some(id))?;
    }
    let data = unfinished.path().join("data");
    run(as_server_user(&bin.join("initdb"))
        .current_dir(unfinished.path())
        .arg("-D")
        .arg(&data)
        .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"])
        .args(["--no-sync", "--no-instructions", "--wal-segsize=1"]))?;
    fs::rename(&data, &template)?; // A template is there whole, or not at all.
    Ok(template)
}

/// Copies the template, as the user that will run the server.
pub(crate) fn copy(template: &Path, to: &Path) -> anyhow::Result<()> {
    run(as_server_user(Path::new("cp")).arg("-Rp").arg(template).arg(to)).map(drop)
}

/// Runs `command` to its end and returns its standard output, trimmed; an error has its standard error.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_owned();
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("cannot run {}", program.display()))?;
    let stderr = String::from_utf8_lossy(&stderr);
    ensure!(status.success(), "{} failed ({status}): {}", program.display(), stderr.trim());
    Ok(String::from_utf8_lossy(&stdout).trim().to_owned())
}
