//! The certificates of the program's listeners, which a reload exchanges together.

use admit_listen::{Tls, TlsError};

use crate::policy::Server;

/// What the listeners show their clients. Clones share it.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// Of the main listener, if it is encrypted.
    pub main: Option<Tls>,
    /// Of the admin listener, if it is encrypted.
    pub admin: Option<Tls>,
}

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificatesError {
    /// A file is wrong.
    #[error("{member} cannot be used")]
    Tls {
        /// The member of the policy that names it.
        member: &'static str,
        /// What is wrong.
        source: Box<TlsError>,
    },
    /// A listener in the clear cannot become encrypted, nor the other way round: its clients would break.
    #[error("{0} was added or taken away, and takes a restart")]
    Switched(&'static str),
}

impl Certificates {
    /// Reads the files that the policy names.
    ///
    /// # Errors
    /// [`CertificatesError::Tls`] if one cannot be read or used.
    pub fn load(server: &Server) -> Result<Self, CertificatesError> {
        let load = |member, files: &Option<_>| {
            let loaded = files.as_ref().map(Tls::load).transpose();
            loaded.map_err(|source| CertificatesError::Tls { member, source: Box::new(source) })
        };
        Ok(Self { main: load("tls", &server.tls)?, admin: load("admin_tls", &server.admin_tls)? })
    }

    /// Reads them anew, for connections from then on: all of them, or none.
    ///
    /// # Errors
    /// [`CertificatesError`] if a file cannot be read or used, or if a listener would have to switch. What was read
    /// before stays.
    pub fn reload(&self, server: &Server) -> Result<(), CertificatesError> {
        let new = Self::load(server)?;
        let pairs = [("tls", &self.main, &new.main), ("admin_tls", &self.admin, &new.admin)];
        if let Some((name, ..)) = pairs.iter().find(|(_, old, new)| old.is_some() != new.is_some()) {
            return Err(CertificatesError::Switched(name));
        }
        for (_, old, new) in pairs {
            if let (Some(old), Some(new)) = (old, new) {
                old.replace(new);
            }
        }
        Ok(())
    }
}
