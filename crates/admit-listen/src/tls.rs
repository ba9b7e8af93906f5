//! TLS, and certificates that can be exchanged while connections are served.

use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, crypto::ring};

/// The largest file of certificates or keys, in bytes: far more than any chain, far less than a wrong file may have.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// What is spoken, the better first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Where certificates and keys are, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the server, and behind it those that lead to a root which clients know.
    pub certificate: PathBuf,
    /// The key of the first certificate.
    pub key: PathBuf,
    /// The roots of the certificates that clients have to present; without them clients need none.
    pub client_ca: Option<PathBuf>,
}

/// What a listener shows its clients, TLS 1.2 and 1.3. Clones share it: what [`Tls::reload`] reads holds for all.
#[derive(Clone)]
pub struct Tls(Arc<RwLock<Arc<ServerConfig>>>);

/// Files that TLS cannot be served with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A directory, a pipe or a device.
    #[error("{} is no regular file", .file.display())]
    NotAFile {
        /// What is none.
        file: PathBuf,
    },
    /// A file is too large to be one of certificates or keys.
    #[error("{} is larger than {MAX_FILE_BYTES} bytes, and so no file of certificates or keys", .file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
    },
    /// A file holds no PEM.
    #[error("{} is not PEM: it needs whole blocks between BEGIN and END lines", .file.display())]
    NotPem {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        source: pem::Error,
    },
    /// A file holds no certificate.
    #[error("{} holds no certificate: it needs a block BEGIN CERTIFICATE", .file.display())]
    NoCertificate {
        /// The file.
        file: PathBuf,
    },
    /// A file holds no key.
    #[error("{} holds no key: it needs a block BEGIN PRIVATE KEY, without a password", .file.display())]
    NoKey {
        /// The file.
        file: PathBuf,
    },
    /// A certificate and a key do not go together, or are of a kind that is not spoken.
    #[error("the certificate {} and the key {} cannot be used together", .certificate.display(), .key.display())]
    Unusable {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
    /// A root cannot be used.
    #[error("{} holds a certificate that is no root of others", .file.display())]
    NotARoot {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
    /// Roots cannot be used.
    #[error("the roots in {} cannot be used", .file.display())]
    Roots {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: VerifierBuilderError,
    },
}

impl TlsFiles {
    /// The same, where they are named from this directory.
    #[must_use]
    pub fn beside(&self, directory: &Path) -> Self {
        Self {
            certificate: directory.join(&self.certificate),
            key: directory.join(&self.key),
            client_ca: self.client_ca.as_ref().map(|file| directory.join(file)),
        }
    }

    /// Each of the files.
    pub fn all(&self) -> impl Iterator<Item = &Path> {
        [&self.certificate, &self.key].into_iter().chain(&self.client_ca).map(PathBuf::as_path)
    }
}

impl Tls {
    /// Reads certificates and keys.
    ///
    /// # Errors
    /// [`TlsError`] if a file cannot be read or used.
    pub fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        Ok(Self(Arc::new(RwLock::new(Arc::new(config(files)?)))))
    }

    /// Reads them anew. Connections from then on get what was read; those that are open keep what they have.
    ///
    /// # Errors
    /// [`TlsError`] if a file cannot be read or used; what was read before stays.
    pub fn reload(&self, files: &TlsFiles) -> Result<(), TlsError> {
        let new = Arc::new(config(files)?);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Takes over what another one has read.
    pub fn replace(&self, other: &Self) {
        let new = other.current();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Without what it holds.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

fn config(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let (chain, key) = identity(&files.certificate, &files.key)?;
    let unusable = |source| TlsError::Unusable {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        source,
    };
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let roots = Arc::new(roots(file)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            let unusable = |source| TlsError::Roots { file: file.clone(), source };
            builder.with_client_cert_verifier(verifier.map_err(unusable)?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(config)
}

/// A certificate, behind it those that lead to a root, and the key of the first: what a server or a client shows the other.
/// Whether they go together is not looked at.
///
/// # Errors
/// [`TlsError`] if a file cannot be read, or holds something else.
pub fn identity(
    certificate: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::NoKey { file: key.to_owned() },
        source => TlsError::NotPem { file: key.to_owned(), source },
    })?;
    Ok((chain, key))
}

/// The roots in a file of certificates in PEM, for those that check the certificates of others.
///
/// # Errors
/// [`TlsError`] if the file cannot be read, or holds something else.
pub fn roots(file: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        let added = roots.add(certificate);
        added.map_err(|source| TlsError::NotARoot { file: file.to_owned(), source })?;
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(file)?).collect();
    let certificates = certificates.map_err(|source| TlsError::NotPem { file: file.to_owned(), source })?;
    match certificates.is_empty() {
        true => Err(TlsError::NoCertificate { file: file.to_owned() }),
        false => Ok(certificates),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |source| TlsError::Unreadable { file: file.to_owned(), source };
    if !fs::metadata(file).map_err(unreadable)?.is_file() {
        return Err(TlsError::NotAFile { file: file.to_owned() }); // Who reads a pipe may wait for ever.
    }
    let mut read = Vec::new();
    let opened = fs::File::open(file).map_err(unreadable)?;
    opened.take(MAX_FILE_BYTES + 1).read_to_end(&mut read).map_err(unreadable)?;
    match read.len() as u64 > MAX_FILE_BYTES {
        true => Err(TlsError::TooLarge { file: file.to_owned() }),
        false => Ok(read),
    }
}
