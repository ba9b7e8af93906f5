//! Whether the path of the database still names the file that is open.
//!
//! A file that is deleted or replaced under a connection lives on without a name: what is committed there is gone with the
//! process. SQLite does not notice; so the store looks after each commit, before it answers.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::writer::Failure;

/// The database and its log, as they were when they were opened.
#[derive(Debug)]
pub(super) struct NamedFiles([(PathBuf, Identity); 2]);

/// Device and inode.
#[cfg(unix)]
type Identity = (u64, u64);

/// Where an open file can be neither deleted nor replaced, that there is one is enough.
#[cfg(not(unix))]
type Identity = ();

impl NamedFiles {
    /// Of a connection that was just opened at `path` and has read.
    pub(super) fn of(connection: &Connection, path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        // SQLite puts the log beside the file that a link leads to.
        let mut log = connection.path().map_or_else(|| path.clone().into_os_string(), OsString::from);
        log.push("-wal");
        let log = PathBuf::from(log);
        Ok(Self([(path.clone(), identity(&path)?), (log.clone(), identity(&log)?)]))
    }

    /// # Errors
    /// [`Failure::Replaced`] if one of the paths names another file than before, or none. It may be put back.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let lost = |(path, opened): &&(PathBuf, Identity)| !matches!(identity(path), Ok(present) if present == *opened);
        self.0.iter().find(lost).map_or(Ok(()), |(path, _)| Err(Failure::Replaced(path.clone())))
    }
}

fn identity(path: &Path) -> io::Result<Identity> {
    fs::metadata(path).map(|metadata| identity_of(&metadata))
}

#[cfg(unix)]
fn identity_of(metadata: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
fn identity_of(_: &Metadata) -> Identity {}
