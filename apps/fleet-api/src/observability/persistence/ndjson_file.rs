//! Telemetry in a file, a JSON object a line, bounded by keeping one file before it.
//!
//! Lines are handed to the operating system before the next batch is taken, so they outlive this process; they are not
//! flushed to disk one by one, so a machine that loses power may lose the last seconds.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use crate::observability::TelemetrySink;

/// A file of lines.
#[derive(Debug)]
pub struct NdjsonFile {
    path: PathBuf,
    file: File,
    length: u64,
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
        let length = file.metadata()?.len();
        Ok(Self { path, file, length, max_bytes })
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut previous = self.path.clone().into_os_string();
        previous.push(".1");
        std::fs::rename(&self.path, previous)?;
        self.file = open(&self.path)?;
        self.length = self.file.metadata()?.len();
        Ok(())
    }
}

fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

impl TelemetrySink for NdjsonFile {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.length > 0 && self.length + lines.len() as u64 > self.max_bytes {
            self.rotate()?;
        }
        if let Err(error) = self.file.write_all(lines) {
            self.file.set_len(self.length)?; // Half a line would spoil the next.
            return Err(error);
        }
        self.length += lines.len() as u64;
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
}
