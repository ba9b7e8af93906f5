//! A data directory to copy, and what all tests of a user share.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, ensure};

use crate::PostgresPrograms;
use crate::home::{as_server_user, server_user, short_temp_dir};

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
pub(crate) fn template(programs: &PostgresPrograms) -> anyhow::Result<PathBuf> {
    let version = &programs.version;
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
    run(as_server_user(&programs.dir.join("initdb"))
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
