//! The key of a bucket, made of what stands for its parts: the same in every front.

use std::borrow::Cow;
use std::net::IpAddr;

use admit::Key;
use admit_tower::client_ip;

/// What stands for one part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stands<'t> {
    /// A text: of a header, a path, a query, a body, an entry, or of the policy.
    Text(Cow<'t, str>),
    /// The address of a client.
    Client(IpAddr),
    /// The key of a caller whose API key is known.
    Caller(Key),
}

/// Of one part it is that as it is; several are joined with their lengths before them, so that no two lists of parts meet.
pub(super) fn key(parts: &[Stands<'_>]) -> Key {
    match parts {
        [Stands::Text(text)] => of_text(text),
        [Stands::Client(client)] => client_ip::key(*client),
        [Stands::Caller(key)] => *key,
        parts => {
            let mut joined = Vec::new();
            for text in parts.iter().map(Stands::text) {
                joined.extend((text.len() as u64).to_be_bytes());
                joined.extend(text.as_bytes());
            }
            Key::hashed(joined)
        }
    }
}

/// A UUID is itself, and any other text is hashed. Zeros mark an identifier that was never set, which a store refuses; from a
/// client they are a text like any other.
pub(crate) fn of_text(text: &str) -> Key {
    let key = Key::of(text);
    if key.is_zero() { Key::hashed(text) } else { key }
}

/// Nothing.
impl Default for Stands<'_> {
    fn default() -> Self {
        Self::Text(Cow::Borrowed(""))
    }
}

impl Stands<'_> {
    /// Whether there is nothing: a request may lack a part.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Self::Text(text) if text.is_empty())
    }

    fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Client(client) => Cow::Owned(client_ip::group(*client).to_string()),
            Self::Caller(key) => Cow::Owned(key.to_string()),
        }
    }
}
