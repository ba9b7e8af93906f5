//! Hashes in place of secrets.

use super::section::{Value, Wrong, text};

/// A SHA-256 in hexadecimal digits.
pub(super) fn sha256(value: Value<'_>) -> Result<[u8; 32], Wrong> {
    let hex = text(value)?;
    let digit = |i: usize| hex.get(2 * i..2 * i + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    let digest: Option<Vec<u8>> = (0..32).map(digit).collect();
    let digest = digest.filter(|_| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    digest.and_then(|digest| <[u8; 32]>::try_from(digest).ok()).ok_or_else(|| {
        Wrong::new(value, "this is no SHA-256", "write 64 hexadecimal digits, as sha256sum prints them")
    })
}
