//! TLS to the server.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// How the store encrypts a connection in `mode`: by `own` settings if there are some; else in `require` with the system's
/// roots, and in `prefer` with any certificate, as libpq does.
///
/// # Errors
/// [`Error`] if the protocol versions are not available.
pub(super) fn connector(mode: SslMode, own: Option<ClientConfig>) -> Result<MakeRustlsConnect, Error> {
    let config = match (own, mode) {
        (Some(own), _) => own,
        (None, SslMode::Require) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            builder()?.with_root_certificates(roots).with_no_client_auth()
        }
        (None, _) => builder()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer(ring::default_provider())))
            .with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, Error> {
    // The provider is named, so that nothing depends on one being installed for the process.
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
}

/// Takes any certificate. For `sslmode=prefer`, which would go on without encryption if the server had none, and so does
/// not protect from anybody in the middle; but servers come with certificates that they signed themselves, and an
/// encrypted connection to those is better than a failed one.
#[derive(Debug)]
struct AnyServer(CryptoProvider);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
