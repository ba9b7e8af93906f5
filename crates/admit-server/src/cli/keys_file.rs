//! Changes a file of API keys as a person would: what else stands in it, comments included, stays.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use miette::{IntoDiagnostic, Report, WrapErr, miette};
use tempfile::NamedTempFile;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, value};

use crate::policy::{KeyEntry, Keys};
use crate::source::text;

/// A file of keys that is being changed. Nobody else who locks it changes it meanwhile.
#[derive(Debug)]
pub(super) struct KeysFile {
    /// Behind symbolic links, so that a link stays one.
    path: PathBuf,
    document: DocumentMut,
    keys: Keys,
    /// The directory, as the file itself is replaced.
    _lock: File,
}

impl KeysFile {
    /// Opens the file, waiting for another who changes it. One that is not there is empty.
    pub(super) fn open(path: &Path) -> miette::Result<Self> {
        let failed = || format!("{} cannot be opened", path.display());
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let lock = File::open(directory).into_diagnostic().wrap_err_with(failed)?;
        lock.lock().into_diagnostic().wrap_err_with(failed)?;
        let found = if path.exists() { text(&path)? } else { String::new() };
        let keys = Keys::parse(&path.display().to_string(), &found)?;
        let document = found.parse().into_diagnostic().wrap_err_with(failed)?;
        Ok(Self { path, document, keys, _lock: lock })
    }

    pub(super) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(super) fn add(&mut self, entry: &KeyEntry) -> miette::Result<()> {
        let mut table = Table::new();
        table["sha256"] = value(HEXLOWER.encode(&entry.sha256));
        table["tenant"] = value(&entry.identity.tenant);
        let optional = [("plan", &entry.identity.plan), ("name", &entry.name), ("created", &entry.created)];
        for (member, text) in optional {
            if let Some(text) = text {
                table[member] = value(text);
            }
        }
        let keys = self.document.entry("keys").or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
        match keys {
            Item::ArrayOfTables(tables) => tables.push(table),
            Item::Value(toml_edit::Value::Array(list)) => list.push(table.into_inline_table()),
            // One key in the place of a list of one, which the parser takes.
            _ => return Err(self.odd()),
        }
        self.write()
    }

    pub(super) fn remove(&mut self, sha256: &[u8; 32]) -> miette::Result<()> {
        let (digest, odd) = (HEXLOWER.encode(sha256), self.odd());
        let is_it = |found: Option<&str>| found.is_some_and(|found| found.eq_ignore_ascii_case(&digest));
        match self.document.get_mut("keys") {
            Some(Item::ArrayOfTables(tables)) => {
                tables.retain(|table| !is_it(table.get("sha256").and_then(Item::as_str)));
            }
            Some(Item::Value(toml_edit::Value::Array(list))) => list.retain(|one| {
                let found = one.as_inline_table().and_then(|one| one.get("sha256")?.as_str());
                !is_it(found)
            }),
            _ => return Err(odd),
        }
        self.write()
    }

    fn odd(&self) -> Report {
        miette!(
            help = "write each key as a table under [[keys]]",
            "the keys in {} are in a form that cannot be changed here",
            self.path.display()
        )
    }

    /// Puts a whole new file, for its owner alone, in the place of the one before.
    fn write(&self) -> miette::Result<()> {
        let failed = || format!("{} cannot be written", self.path.display());
        let text = self.document.to_string();
        Keys::parse(&self.path.display().to_string(), &text)?; // What would not be read is not written.
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let written = NamedTempFile::new_in(directory.unwrap_or(Path::new("."))).and_then(|mut file| {
            file.write_all(text.as_bytes())?; // A temporary file has the mode 0600.
            file.as_file().sync_all()?;
            file.persist(&self.path).map_err(|error| error.error)
        });
        written.map(drop).into_diagnostic().wrap_err_with(failed)
    }
}
