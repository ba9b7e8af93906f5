//! Ties what a client was told to what the log says.

use std::fmt;

use http::request::Parts;
use http::{HeaderName, HeaderValue};
use uuid::Uuid;

/// The header in which a correlation id is sent to the client.
pub const X_CORRELATION_ID: HeaderName = HeaderName::from_static("x-correlation-id");

/// An id that stands in the answer to the client and in the log beside the cause, which only the log has.
///
/// An application that has an id for each request puts it into the request's extensions; the layers then use that one. Else the
/// idempotency layer puts one there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorrelationId(String);

impl CorrelationId {
    /// The longest id, in bytes.
    pub const MAX_LEN: usize = 128;

    /// An id of the application's: 1 to [`CorrelationId::MAX_LEN`] visible ASCII characters, else nothing.
    pub fn new(id: impl Into<String>) -> Option<Self> {
        let id = id.into();
        let valid = (1..=Self::MAX_LEN).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
        valid.then_some(Self(id))
    }

    /// A random id.
    pub fn random() -> Self {
        Self(Uuid::new_v4().hyphenated().to_string())
    }

    /// The id in the request's extensions, else a random one.
    pub fn of(parts: &Parts) -> Self {
        parts.extensions.get::<Self>().cloned().unwrap_or_else(Self::random)
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn header_value(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.0).ok()
    }
}

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
