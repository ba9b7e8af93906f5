//! Whose bucket it is.

use std::fmt;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// 16 bytes that say whose bucket it is.
///
/// A UUID stands as it is; any other text is the first 128 bits of its SHA-256, so that an API key or an address never
/// reaches a table or a log. Shown in the form of a UUID, as PostgreSQL shows it.
///
/// ```
/// use admit::Key;
///
/// assert_eq!(Key::of("3f0d6f4e-8f1c-4b7e-9a55-0e6f3f7f3a11").to_string(), "3f0d6f4e-8f1c-4b7e-9a55-0e6f3f7f3a11");
/// assert_eq!(Key::of("a-tenant").to_string(), Key::hashed("a-tenant").to_string());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 16]);

impl Key {
    /// The key of `text`: its bytes if it is a UUID in the hyphenated form, else [`Key::hashed`].
    ///
    /// For identifiers that the caller cannot choose freely. A caller who may send any text could send another's key in
    /// the form of a UUID and spend its bucket; use [`Key::hashed`] there.
    pub fn of(text: &str) -> Self {
        if text.len() == uuid::fmt::Hyphenated::LENGTH
            && let Ok(uuid) = Uuid::try_parse(text)
        {
            return Self(uuid.into_bytes());
        }
        Self::hashed(text)
    }

    /// The first 128 bits of the SHA-256 of `text`.
    pub fn hashed(text: impl AsRef<[u8]>) -> Self {
        let digest = Sha256::digest(text);
        Self(std::array::from_fn(|i| digest[i]))
    }

    /// The key of these bytes, as a UUID has them.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Whether all bytes are zero: the mark of an identifier that was never set. Stores refuse it.
    #[inline]
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).hyphenated().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hyphenated_form_stands_as_it_is() {
        let uuid = "00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(Key::of(uuid).as_bytes()[..3], [0x00, 0x11, 0x22]);
        for other in
            ["00112233445566778899aabbccddeeff", "{00112233-4455-6677-8899-aabbccddeeff}", "not-a-uuid"]
        {
            assert_eq!(Key::of(other), Key::hashed(other), "{other}");
        }
        assert_ne!(Key::hashed(uuid), Key::of(uuid));
    }

    #[test]
    fn the_hash_is_the_start_of_sha_256() {
        // `printf abc | sha256sum`
        assert_eq!(Key::hashed("abc").to_string(), "ba7816bf-8f01-cfea-4141-40de5dae2223");
    }
}
