//! Randomness from the operating system.

use ring::rand::{SecureRandom, SystemRandom};
use uuid::Uuid;

/// The operating system gave no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system gives no random bytes")]
pub struct NoRandomness;

/// `N` random bytes.
///
/// # Errors
/// [`NoRandomness`] if the operating system gives none.
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// A random UUID (version 4).
///
/// # Errors
/// As [`bytes()`].
pub fn uuid() -> Result<Uuid, NoRandomness> {
    bytes().map(|bytes| uuid::Builder::from_random_bytes(bytes).into_uuid())
}
