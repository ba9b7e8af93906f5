//! What a listener is encrypted with.

use std::path::PathBuf;

use admit_listen::TlsFiles;

use super::problems::Problems;
use super::section::{Section, Value, Wrong, text};

/// Reads `tls = { certificate = "…", key = "…", client_ca = "…" }`.
pub(super) fn tls<'a>(name: &str, value: Value<'a>, problems: &'a Problems) -> Result<TlsFiles, Wrong> {
    let mut section = Section::of(name, value, problems)?;
    let certificate = section.required("certificate", "\"certificate.pem\"", file);
    let key = section.required("key", "\"key.pem\"", file);
    let client_ca = section.member("client_ca", file);
    section.finish();
    // What is missing is noted.
    Ok(TlsFiles { certificate: certificate.unwrap_or_default(), key: key.unwrap_or_default(), client_ca })
}

/// The name of a file, from where the policy file is.
pub(super) fn file(value: Value<'_>) -> Result<PathBuf, Wrong> {
    match text(value)? {
        "" => Err(Wrong::new(value, "this names no file", "write its path, from where the policy file is")),
        file => Ok(PathBuf::from(file)),
    }
}
