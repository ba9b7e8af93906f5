//! Where a page ended.
//!
//! A cursor is opaque to clients: base64url of what the next page starts behind, bound to the request it came from. It
//! holds no secret and grants nothing: every page is read for the caller's own tenant, and starts behind something of its
//! own.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

/// The longest cursor that is read, in bytes. The longest that is made holds the name of a project.
pub const MAX_CURSOR_BYTES: usize = 4_096;
const VERSION: u8 = 1;
const BINDING_BYTES: usize = 8;

/// A cursor that was not made here, or for another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// Not a cursor of this service.
    #[error("the cursor is not one that this service made")]
    Malformed,
    /// A cursor of another tenant, list, search or filter.
    #[error("the cursor belongs to another request; send it as the same tenant with the same parameters")]
    OtherRequest,
}

/// What a cursor is good for: a tenant's list and its filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding([u8; BINDING_BYTES]);

impl Binding {
    /// The binding to these parts, in this order.
    pub fn of(parts: &[&str]) -> Self {
        let mut digest = Sha256::new();
        for part in parts {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let digest = digest.finalize();
        Self(std::array::from_fn(|i| digest[i]))
    }

    /// The cursor of `position`.
    pub fn encode(self, position: &impl Serialize) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend(self.0);
        let written = serde_json::to_writer(&mut bytes, position); // Numbers and strings always have a form.
        debug_assert!(written.is_ok());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The position of a cursor.
    ///
    /// # Errors
    /// [`CursorError`] if it is not one of ours for this request.
    pub fn decode<T: DeserializeOwned>(self, cursor: &str) -> Result<T, CursorError> {
        let bytes = Some(cursor).filter(|cursor| cursor.len() <= MAX_CURSOR_BYTES);
        let bytes =
            bytes.and_then(|cursor| URL_SAFE_NO_PAD.decode(cursor).ok()).ok_or(CursorError::Malformed)?;
        let position = bytes.strip_prefix(&[VERSION]).ok_or(CursorError::Malformed)?;
        let (binding, position) = position.split_at_checked(BINDING_BYTES).ok_or(CursorError::Malformed)?;
        if binding != self.0 {
            return Err(CursorError::OtherRequest);
        }
        serde_json::from_slice(position).map_err(|_| CursorError::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_only_for_its_own_request() {
        let binding = Binding::of(&["query", "a", ""]);
        let cursor = binding.encode(&(7_i64, 3_i64));
        assert_eq!(binding.decode(&cursor), Ok((7_i64, 3_i64)));
        assert_eq!(
            Binding::of(&["query", "", "a"]).decode::<(i64, i64)>(&cursor),
            Err(CursorError::OtherRequest)
        );
        for wrong in ["", "x", "AQ", "!!!!", &cursor[1..], &format!("{cursor}=")] {
            assert!(binding.decode::<(i64, i64)>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(binding.decode::<String>(&cursor), Err(CursorError::Malformed));
    }
}
