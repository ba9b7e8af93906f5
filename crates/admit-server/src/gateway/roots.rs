//! What the certificates of upstreams are checked against.

use std::sync::Arc;

use admit_listen::TlsError;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

use crate::policy::Upstreams;

/// An upstream whose certificate cannot be checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// The file of roots is wrong.
    #[error("upstream_ca cannot be used")]
    Roots(#[from] TlsError),
    /// The system knows no roots, and the policy names none.
    #[error(
        "https:// takes root certificates, and this system has none: install them, or name a file (upstream_ca, --ca)"
    )]
    NoRoots,
    /// The provider of cryptography cannot speak TLS.
    #[error("TLS cannot be spoken")]
    Tls(#[from] rustls::Error),
}

/// The roots of the system and those of the file, if any upstream is encrypted.
pub(crate) fn client_config(upstreams: &Upstreams) -> Result<ClientConfig, GatewayError> {
    let is_encrypted = upstreams.urls.iter().any(|url| url.0.scheme_str() == Some("https"));
    let mut roots = match &upstreams.ca {
        Some(file) => admit_listen::roots(file)?,
        None => RootCertStore::empty(),
    };
    if is_encrypted {
        let system = rustls_native_certs::load_native_certs();
        for error in &system.errors {
            tracing::warn!(cause = %error, "some of the system's root certificates cannot be read");
        }
        roots.add_parsable_certificates(system.certs); // A few old roots are no longer parsed.
        if roots.is_empty() {
            return Err(GatewayError::NoRoots);
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
