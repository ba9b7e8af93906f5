//! Telemetry in a file, a JSON object a line, bounded by keeping one file before it.
//!
//! Lines are handed to the operating system before the next batch is taken, so they outlive this process; they are not
//! flushed to disk one by one, so a machine that loses power may lose the last seconds.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use crate::observability::TelemetrySink;

/// A file of lines.
#[derive(Debug)]
pub struct NdjsonFile {
    path: PathBuf,
    file: File,
    max_bytes: u64,
}

impl NdjsonFile {
    /// Opens the file for appending, or makes it. A file that would grow over `max_bytes` is renamed to `PATH.1` first,
    /// replacing the one there.
    ///
    /// # Errors
    /// If it cannot be opened or written.
    pub fn open(path: impl Into<PathBuf>, max_bytes: u64) -> io::Result<Self> {
        let path = path.into();
        let file = open(&path)?;
        Ok(Self { path, file, max_bytes })
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut previous = self.path.clone().into_os_string();
        previous.push(".1");
        std::fs::rename(&self.path, previous)?;
        self.file = open(&self.path)?;
        Ok(())
    }

    /// Begins the file anew if somebody has moved or deleted it: what is written to a file without a name is lost.
    fn follow(&mut self) -> io::Result<()> {
        let is_there = match std::fs::metadata(&self.path) {
            Ok(named) => is_same(&named, &self.file.metadata()?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if !is_there {
            self.file = open(&self.path)?;
        }
        Ok(())
    }
}

#[cfg(unix)]
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Where an open file can be neither moved nor deleted, that there is one is enough.
#[cfg(not(unix))]
fn is_same(_: &Metadata, _: &Metadata) -> bool {
    true
}

fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

impl TelemetrySink for NdjsonFile {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.follow()?;
        let mut length = self.file.metadata()?.len();
        if length > 0 && length + lines.len() as u64 > self.max_bytes {
            self.rotate()?;
            length = self.file.metadata()?.len();
        }
        if let Err(error) = self.file.write_all(lines) {
            self.file.set_len(length)?; // Half a line would spoil the next.
            return Err(error);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_and_the_one_before_it_are_all_that_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ingest.ndjson");
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let mut file = NdjsonFile::open(&path, 8).unwrap();
        for line in ["one\n", "two\n", "three\n", "four\n"] {
            file.append(line.as_bytes()).unwrap();
        }
        assert_eq!((read("ingest.ndjson.1"), read("ingest.ndjson")), ("three\n".into(), "four\n".into()));

        let mut file = NdjsonFile::open(&path, 100).unwrap();
        file.append(b"five\n").unwrap();
        assert_eq!(read("ingest.ndjson"), "four\nfive\n");
    }

    /// Lines went on into the file without a name after an operator had moved or deleted it, and the length of one that
    /// another process had grown was what this one had written.
    #[test]
    fn a_file_that_was_moved_or_deleted_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ingest.ndjson");
        let read = || std::fs::read_to_string(&path).unwrap();
        let mut file = NdjsonFile::open(&path, 12).unwrap();
        file.append(b"one\n").unwrap();
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        file.append(b"two\n").unwrap();
        assert_eq!(read(), "two\n");
        std::fs::remove_file(&path).unwrap();
        file.append(b"three\n").unwrap();
        assert_eq!(read(), "three\n");
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert!(file.append(b"four\n").is_err(), "it is tried again when there is a directory");
        std::fs::create_dir(dir.path()).unwrap();
        file.append(b"four\n").unwrap();
        NdjsonFile::open(&path, 12).unwrap().append(b"other\n").unwrap();
        file.append(b"five\n").unwrap();
        assert_eq!(read(), "five\n", "what others wrote counts as well");
    }
}
