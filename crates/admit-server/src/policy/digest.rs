//! Hashes in place of secrets.

use data_encoding::HEXLOWER_PERMISSIVE;

use super::section::{Value, Wrong, text};

/// A SHA-256 in hexadecimal digits.
pub(super) fn sha256(value: Value<'_>) -> Result<[u8; 32], Wrong> {
    let hex = text(value)?;
    let digest = HEXLOWER_PERMISSIVE.decode(hex.as_bytes()).ok();
    digest.and_then(|digest| digest.try_into().ok()).ok_or_else(|| {
        Wrong::new(value, "this is no SHA-256", "write 64 hexadecimal digits, as sha256sum prints them")
    })
}
