//! The envelope of a secret on the wire: a 12-byte nonce, then the AES-256-GCM ciphertext with its 16-byte tag.
//!
//! The AES key is the caller's node secret key: a key of 32 characters is used as it is, byte for byte, as clients of the
//! platform do; a key of any other length is brought to 32 bytes by SHA-256. There is no associated data.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::{Digest, Sha256};

use crate::random::{self, NoRandomness};
use crate::redacted::Redacted;

/// Why a value could not be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// There is no nonce without it.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    /// The cipher refused the key or the value; with keys of 32 bytes and values under 64 GiB it does not.
    #[error("AES-256-GCM refused the key or the value")]
    Cipher,
}

/// Seals a value under a node secret key, with a new random nonce.
///
/// # Errors
/// [`SealError`].
pub fn seal(node_key: &Redacted<String>, value: &[u8]) -> Result<Vec<u8>, SealError> {
    let nonce: [u8; NONCE_LEN] = random::bytes()?;
    let key = UnboundKey::new(&AES_256_GCM, &aes_key(node_key.reveal())).map_err(|_| SealError::Cipher)?;
    let mut sealed = value.to_vec();
    LessSafeKey::new(key)
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed)
        .map_err(|_| SealError::Cipher)?;
    Ok([&nonce[..], &sealed].concat())
}

fn aes_key(node_key: &str) -> [u8; 32] {
    node_key.as_bytes().try_into().unwrap_or_else(|_| Sha256::digest(node_key).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_the_key_opens_the_envelope_and_nobody_else() {
        let open = |key: &[u8; 32], envelope: &[u8]| {
            let (nonce, sealed) = envelope.split_at(NONCE_LEN);
            let nonce = Nonce::try_assume_unique_for_key(nonce).unwrap();
            let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).unwrap());
            key.open_in_place(nonce, Aad::empty(), &mut sealed.to_vec()).ok().map(|value| value.to_vec())
        };
        let key = *b"0123456789abcdef0123456789abcdef";
        let node_key = Redacted::new(String::from_utf8(key.to_vec()).unwrap());
        let envelope = seal(&node_key, b"hush").unwrap();
        assert_eq!(envelope.len(), 12 + 4 + 16);
        assert_eq!(open(&key, &envelope).unwrap(), b"hush");
        assert_eq!(open(&[0; 32], &envelope), None);
        assert_ne!(seal(&node_key, b"hush").unwrap(), envelope, "a nonce was used twice");

        let other = seal(&Redacted::new("of another length".to_owned()), b"hush").unwrap();
        assert_eq!(open(&Sha256::digest("of another length").into(), &other).unwrap(), b"hush");
    }
}
