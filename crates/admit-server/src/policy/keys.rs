//! The API keys of a policy: a file of their hashes, and whose they are.

use std::collections::HashMap;
use std::fmt;

use admit::Key;
use admit_store::ApiKey;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::digest::sha256;
use super::problems::{PolicyErrors, Problems};
use super::section::{Section, Value, Wrong, document, list, plain, text};
use super::shown::Hides;
use crate::text_of_time::rfc3339;

/// A caller whose API key is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its API key, as buckets have it.
    pub key: Key,
    /// Whose key it is.
    pub tenant: String,
    /// What the tenant pays for; nothing for the plain budgets.
    pub plan: Option<String>,
}

/// The API keys that are known. A key itself is kept nowhere: only its SHA-256. Keys are long random strings, so a plain
/// digest is enough.
///
/// ```
/// use admit_server::policy::Keys;
///
/// // printf %s key-of-acme | sha256sum
/// let keys = Keys::parse("keys.toml", r#"
///     [[keys]]
///     sha256 = "20fab32e41ad80ea52ceb4cff03fb2f10cf5a96bd28f7e5f3ffc5bb5dfb2bd8d"
///     tenant = "acme"
///     plan = "pro"
/// "#)?;
/// assert!(keys.identify(b"another").is_none());
/// # Ok::<(), admit_server::policy::PolicyErrors>(())
/// ```
#[derive(Clone, Default, PartialEq)]
pub struct Keys(HashMap<[u8; 32], KeyEntry>);

/// A key that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// Its SHA-256.
    pub sha256: [u8; 32],
    /// Whose it is.
    pub identity: Identity,
    /// What people call it.
    pub name: Option<String>,
    /// When it was made, as RFC 3339 has it.
    pub created: Option<String>,
}

impl Keys {
    /// Reads the text of a file of keys. `file` is its name, for what is told of it.
    ///
    /// # Errors
    /// [`PolicyErrors`] with everything that is wrong.
    pub fn parse(file: &str, text: &str) -> Result<Self, PolicyErrors> {
        document(
            "a file of keys",
            file,
            text,
            Hides::AllBut(&["tenant", "plan", "name", "created", "keys"]),
            |mut section, problems| {
                let mut keys = HashMap::new();
                section.member("keys", |value| {
                    for (entry, place) in
                        list(value, problems, |value| key(value, problems)).into_iter().flatten()
                    {
                        if keys.insert(entry.sha256, entry).is_some() {
                            problems.add(place.span(), "this key stands twice", "a key has one tenant");
                        }
                    }
                    Ok(())
                });
                section.finish();
                Some(Self(keys))
            },
        )
    }

    /// Whose the presented key is. It is looked up by its hash, and the hash that is found compared in constant time.
    pub fn identify(&self, presented: &[u8]) -> Option<&Identity> {
        let digest: [u8; 32] = Sha256::digest(presented).into();
        let (found, entry) = self.0.get_key_value(&digest)?;
        bool::from(found.ct_eq(&digest)).then_some(&entry.identity)
    }

    /// All of them, in the order of their hashes.
    pub fn entries(&self) -> Vec<&KeyEntry> {
        let mut entries: Vec<_> = self.0.values().collect();
        entries.sort_by_key(|entry| entry.sha256);
        entries
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// One entry, and where it is; nothing if its problems are noted.
fn key<'a>(value: Value<'a>, problems: &'a Problems) -> Result<Option<(KeyEntry, Value<'a>)>, Wrong> {
    let mut section = Section::of("a key", value, problems)?;
    let example = "\"64 hexadecimal digits\"";
    let digest = section.required("sha256", example, sha256);
    let name = |value| match text(value)? {
        "" => Err(Wrong::new(value, "this names nobody", "write a name")),
        name => Ok(name.to_owned()),
    };
    let tenant = section.required("tenant", "\"acme\"", name);
    let plan = section.member("plan", name);
    let called = section.member("name", name);
    let created =
        section.member("created", plain::<jiff::Timestamp>("a moment as in \"2026-01-31T12:00:00Z\""));
    section.finish();
    let (Some(digest), Some(tenant)) = (digest, tenant) else { return Ok(None) };
    let created = created.map(|moment| moment.to_string());
    Ok(Some((
        KeyEntry { sha256: digest, identity: identity(digest, tenant, plan), name: called, created },
        value,
    )))
}

/// As of any text, the key of its buckets is the first 128 bits.
fn identity(sha256: [u8; 32], tenant: String, plan: Option<String>) -> Identity {
    Identity { key: Key::from_bytes(std::array::from_fn(|i| sha256[i])), tenant, plan }
}

impl FromIterator<ApiKey> for Keys {
    /// Keys as a store has them.
    fn from_iter<I: IntoIterator<Item = ApiKey>>(keys: I) -> Self {
        let entry = |ApiKey { sha256, tenant, plan, name, created_at }| KeyEntry {
            sha256,
            identity: identity(sha256, tenant, plan),
            name,
            created: Some(rfc3339(created_at)),
        };
        Self(keys.into_iter().map(|key| (key.sha256, entry(key))).collect())
    }
}

/// Shows how many there are.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(key: &str) -> String {
        data_encoding::HEXLOWER.encode(&Sha256::digest(key))
    }

    #[test]
    fn a_key_names_its_tenant_and_its_bucket() {
        let entry = |key: &str, rest: &str| format!("[[keys]]\nsha256 = \"{}\"\n{rest}\n", hex(key));
        let text = entry("k1", "tenant = \"acme\"\nplan = \"pro\"") + &entry("k2", "tenant = \"beta\"");
        let keys = Keys::parse("keys.toml", &text).unwrap();
        let found = keys.identify(b"k1").unwrap();
        assert_eq!(
            (found.tenant.as_str(), found.plan.as_deref(), found.key),
            ("acme", Some("pro"), Key::hashed("k1"))
        );
        assert_eq!(keys.identify(b"k2").map(|found| found.plan.clone()), Some(None));
        assert!(keys.identify(b"k3").is_none() && keys.identify(b"").is_none());
    }

    #[test]
    fn what_is_wrong_is_told_by_its_place() {
        let twice = format!(
            "[[keys]]\nsha256 = \"{0}\"\ntenant = \"a\"\n[[keys]]\nsha256 = \"{0}\"\ntenant = \"b\"",
            hex("k")
        );
        for (text, line, expected) in [
            ("[[keys]]\nsha256 = \"abc\"\ntenant = \"a\"", 2, "this is no SHA-256"),
            (&format!("[[keys]]\nsha256 = \"{}\"", "g".repeat(64)), 1, "a key has no tenant"),
            (&format!("[[keys]]\nsha256 = \"{}é\"\ntenant = \"\"", "a".repeat(62)), 2, "this is no SHA-256"),
            ("[[key]]", 1, "a file of keys takes no \"key\""),
            (&twice, 4, "this key stands twice"),
        ] {
            let errors = Keys::parse("keys.toml", text).unwrap_err();
            assert_eq!(
                (errors.problems()[0].to_string().as_str(), errors.problems()[0].line()),
                (expected, line)
            );
        }
    }
}
