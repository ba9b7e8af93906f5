//! Who calls: API keys and the tenants they belong to.
//!
//! A key is kept as its SHA-256 and never logged. Keys are long random strings, so a plain digest is enough; a slow
//! password hash would only cost time on every request.

use std::fmt;
use std::sync::Arc;

use admit::Key;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// The most keys of one deployment: every request is compared with each of them.
pub const MAX_KEYS: usize = 1_000;
/// The longest key, in bytes. It has to fit a header.
pub const MAX_KEY_BYTES: usize = 512;
const MAX_TENANT_BYTES: usize = 64;

/// The tenant of the development key.
pub const DEVELOPMENT_TENANT: &str = "development";
/// The key that a loopback listener accepts when none is configured.
pub const DEVELOPMENT_KEY: &str = "development-key";

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Whose items it reads and writes.
    pub tenant: Arc<str>,
    /// Names the API key in budgets: the first 128 bits of its SHA-256.
    pub key: Key,
}

/// The configured keys.
#[derive(Clone)]
pub struct ApiKeys {
    entries: Arc<[Entry]>,
}

struct Entry {
    digest: [u8; 32],
    tenant: Arc<str>,
}

/// A list that cannot be the configured keys. No variant carries a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiKeysError {
    /// Nothing between two commas, or nothing at all.
    #[error("entry {0} is empty")]
    Empty(usize),
    /// No `=`.
    #[error("entry {0} has no `=` between a tenant and its key")]
    NoKey(usize),
    /// The tenant is not 1 to 64 of the allowed characters.
    #[error("the tenant of entry {0} is not 1 to 64 of A-Z, a-z, 0-9, `.`, `_` and `-`")]
    Tenant(usize),
    /// The key is empty, too long, or could not stand in a header.
    #[error("the key of entry {0} is not 1 to {MAX_KEY_BYTES} visible ASCII characters")]
    Key(usize),
    /// A key twice.
    #[error("entry {0} repeats the key of entry {1}; a key names one caller")]
    Repeated(usize, usize),
    /// More than [`MAX_KEYS`].
    #[error("there are {0} entries; at most {MAX_KEYS} are taken")]
    TooMany(usize),
}

impl ApiKeys {
    /// Reads `tenant=key,tenant=key`. A tenant may have several keys. A key may hold `=`, and no comma.
    ///
    /// # Errors
    /// [`ApiKeysError`] with the position of the first wrong entry, counted from 1.
    pub fn parse(text: &str) -> Result<Self, ApiKeysError> {
        let count = text.split(',').count();
        if count > MAX_KEYS {
            return Err(ApiKeysError::TooMany(count));
        }
        let mut entries: Vec<Entry> = Vec::with_capacity(count);
        for (i, entry) in text.split(',').enumerate() {
            let place = i + 1;
            let entry = entry.trim();
            if entry.is_empty() {
                return Err(ApiKeysError::Empty(place));
            }
            let (tenant, key) = entry.split_once('=').ok_or(ApiKeysError::NoKey(place))?;
            if !is_tenant(tenant) {
                return Err(ApiKeysError::Tenant(place));
            }
            if key.is_empty() || key.len() > MAX_KEY_BYTES || !key.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(ApiKeysError::Key(place));
            }
            let digest = digest(key.as_bytes());
            if let Some(earlier) = entries.iter().position(|entry| entry.digest == digest) {
                return Err(ApiKeysError::Repeated(place, earlier + 1));
            }
            entries.push(Entry { digest, tenant: tenant.into() });
        }
        Ok(Self { entries: entries.into() })
    }

    /// The one key of a service that nobody else can reach.
    pub fn development() -> Self {
        let digest = digest(DEVELOPMENT_KEY.as_bytes());
        Self { entries: [Entry { digest, tenant: DEVELOPMENT_TENANT.into() }].into() }
    }

    /// How many keys there are.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// The caller that `presented` is the key of. Takes as long for a wrong key as for a right one: the digest of what
    /// was presented is compared with every entry, each in constant time.
    pub fn identify(&self, presented: &[u8]) -> Option<Caller> {
        let digest = digest(presented);
        let mut found = Choice::from(0);
        let mut place = 0_u32;
        for (i, entry) in (0_u32..).zip(self.entries.iter()) {
            let same = entry.digest.ct_eq(&digest);
            place.conditional_assign(&i, same);
            found |= same;
        }
        let entry = self.entries.get(place as usize).filter(|_| bool::from(found))?;
        let key = Key::from_bytes(std::array::from_fn(|i| entry.digest[i]));
        Some(Caller { tenant: Arc::clone(&entry.tenant), key })
    }
}

fn is_tenant(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=MAX_TENANT_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Shows how many keys there are, never what they are.
impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({})", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_names_its_tenant() {
        let keys = ApiKeys::parse("acme=first, acme=second,beta=a=b").unwrap();
        let tenant = |key: &str| keys.identify(key.as_bytes()).map(|caller| caller.tenant.to_string());
        assert_eq!(tenant("first"), Some("acme".into()));
        assert_eq!(tenant("second"), Some("acme".into()));
        assert_eq!(tenant("a=b"), Some("beta".into()));
        for wrong in ["", "firs", "first ", "acme=first", "third"] {
            assert_eq!(tenant(wrong), None, "{wrong:?}");
        }
        assert_eq!(keys.identify(b"first").unwrap().key, Key::hashed("first"));
    }

    #[test]
    fn a_wrong_list_is_named_by_its_place_and_without_the_key() {
        let error = |text: &str| ApiKeys::parse(text).unwrap_err();
        assert_eq!(error(""), ApiKeysError::Empty(1));
        assert_eq!(error("a=b,"), ApiKeysError::Empty(2));
        assert_eq!(error("a=b,secret"), ApiKeysError::NoKey(2));
        assert_eq!(error("=b"), ApiKeysError::Tenant(1));
        assert_eq!(error("a="), ApiKeysError::Key(1));
        assert_eq!(error("a=s t"), ApiKeysError::Key(1));
        assert_eq!(error("a=secret,b=secret"), ApiKeysError::Repeated(2, 1));
        assert!(!error("a=s t").to_string().contains("s t"));
        assert_eq!(format!("{:?}", ApiKeys::development()), "ApiKeys(1)");
    }
}
