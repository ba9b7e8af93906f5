//! What the certificates of servers are checked against.

use std::path::Path;
use std::sync::Arc;

use admit_listen::TlsError;
use rustls::client::WantsClientCert;
use rustls::crypto::ring;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};

/// The roots of the system, and those of the file.
///
/// # Errors
/// [`TlsError`] if the file cannot be read, or holds something else.
pub(crate) fn with_system(file: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut roots = alone(file)?;
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::warn!(cause = %error, "some of the system's root certificates cannot be read");
    }
    roots.add_parsable_certificates(system.certs); // A few old roots are no longer parsed.
    Ok(roots)
}

/// Those of the file.
///
/// # Errors
/// As [`with_system`].
pub(crate) fn alone(file: Option<&Path>) -> Result<RootCertStore, TlsError> {
    file.map_or_else(|| Ok(RootCertStore::empty()), admit_listen::roots)
}

/// A client that checks its servers against these roots, and shows them what is said next.
///
/// # Errors
/// If the provider of cryptography cannot speak TLS.
pub(crate) fn client(
    roots: RootCertStore,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    Ok(builder.with_safe_default_protocol_versions()?.with_root_certificates(roots))
}
