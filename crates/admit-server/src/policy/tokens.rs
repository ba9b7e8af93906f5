//! Bearer tokens, known by their hashes.

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::digest::sha256;
use super::problems::Problems;
use super::section::{Value, list};

/// The tokens of those who may do something, as SHA-256. A token itself is kept nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens(Vec<[u8; 32]>);

impl Tokens {
    pub(super) fn read<'a>(value: Value<'a>, problems: &'a Problems) -> Self {
        Self(list(value, problems, sha256))
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this is one of them. It is compared with all, so that the time tells nothing.
    pub fn accept(&self, presented: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(presented).into();
        let accepted = self.0.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&digest));
        accepted.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tokens_whose_hashes_are_known_are_accepted() {
        let tokens = Tokens(["a", "b"].map(|token| Sha256::digest(token).into()).to_vec());
        assert!(tokens.accept(b"a") && tokens.accept(b"b") && !tokens.accept(b"c") && !tokens.accept(b""));
        assert!(!tokens.is_empty() && !Tokens::default().accept(b""));
    }
}
