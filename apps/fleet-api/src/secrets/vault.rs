//! The secrets there are, and who may read them.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::fleet::{DomainId, NodeId};
use crate::redacted::Redacted;

/// The largest value of a secret: what clients of the platform accept.
pub const MAX_SECRET_BYTES: usize = 1 << 20;

/// A secret with its versions.
#[derive(Clone, Debug, Default)]
pub struct StoredSecret {
    /// The values by version, counted from 1. Never empty.
    pub versions: BTreeMap<u64, Redacted<Vec<u8>>>,
    /// The nodes that may read it.
    pub nodes: HashSet<NodeId>,
    /// The domains whose nodes all may.
    pub domains: HashSet<DomainId>,
}

/// Why a secret was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is none of this name.
    #[error("there is no secret of this name")]
    NotFound,
    /// The node may not read it.
    #[error("the node may not read this secret")]
    NotAllowed,
    /// It has no such version.
    #[error("the secret has no such version")]
    VersionNotFound,
}

/// All secrets by name.
#[derive(Debug, Default)]
pub struct Vault {
    secrets: HashMap<String, StoredSecret>,
}

impl Vault {
    /// Adds a secret; false if there is one of this name.
    pub fn add(&mut self, name: String, secret: StoredSecret) -> bool {
        self.secrets.insert(name, secret).is_none()
    }

    /// The secret of a name.
    ///
    /// # Errors
    /// [`ReadError::NotFound`].
    pub fn resolve(&self, name: &str) -> Result<&StoredSecret, ReadError> {
        self.secrets.get(name).ok_or(ReadError::NotFound)
    }
}

impl StoredSecret {
    /// Whether a node may read it.
    ///
    /// # Errors
    /// [`ReadError::NotAllowed`].
    pub fn authorise(&self, node: NodeId, domain: DomainId) -> Result<(), ReadError> {
        let allowed = self.nodes.contains(&node) || self.domains.contains(&domain);
        if allowed { Ok(()) } else { Err(ReadError::NotAllowed) }
    }

    /// A version, or the newest, with its number.
    ///
    /// # Errors
    /// [`ReadError::VersionNotFound`].
    pub fn read(&self, version: Option<u64>) -> Result<(u64, &Redacted<Vec<u8>>), ReadError> {
        let found = match version {
            Some(version) => self.versions.get_key_value(&version),
            None => self.versions.last_key_value(),
        };
        found.map(|(&version, value)| (version, value)).ok_or(ReadError::VersionNotFound)
    }
}

/// Whether a text can name a secret: `[a-z][a-z0-9_-]{0,62}`.
pub fn is_secret_name(text: &str) -> bool {
    let rest = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    text.len() <= 63 && text.starts_with(|first: char| first.is_ascii_lowercase()) && text.bytes().all(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_grammar() {
        let longest = "a".repeat(63);
        for good in ["a", "tls-cert", "db_password2", longest.as_str()] {
            assert!(is_secret_name(good), "{good}");
        }
        let too_long = "a".repeat(64);
        for bad in ["", "1a", "-a", "A", "a.b", "é", too_long.as_str()] {
            assert!(!is_secret_name(bad), "{bad}");
        }
    }
}
