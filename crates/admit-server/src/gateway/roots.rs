//! What the certificates of upstreams are checked against.

use admit_listen::TlsError;
use rustls::ClientConfig;

use crate::policy::Upstreams;
use crate::roots;

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
pub(super) fn client_config(upstreams: &Upstreams) -> Result<ClientConfig, GatewayError> {
    let is_encrypted = upstreams.urls.iter().any(|url| url.0.scheme_str() == Some("https"));
    let ca = upstreams.ca.as_deref();
    let roots = if is_encrypted { roots::with_system(ca)? } else { roots::alone(ca)? };
    if is_encrypted && roots.is_empty() {
        return Err(GatewayError::NoRoots);
    }
    Ok(roots::client(roots)?.with_no_client_auth())
}
