//! The token of a session: a JWT (RFC 7519) signed with Ed25519 (RFC 8037), in the compact form.
//!
//! Ed25519 is deterministic, so the same session always has the same token, as long as the key stays; tokens are made
//! again for a replay and stored nowhere.

use admit::Timestamp;
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde::Serialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Kind, Session, Target};
use crate::redacted::Redacted;
use crate::rfc3339;

/// Signs tokens.
#[derive(Debug)]
pub struct Signer {
    pair: Ed25519KeyPair, // Its Debug form shows the public key alone.
    key_id: String,
    issuer: String,
}

/// A seed that is no Ed25519 key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an Ed25519 seed is 32 bytes in base64, as `openssl rand -base64 32` prints them")]
pub struct SignerError;

#[derive(Serialize)]
struct Header<'a> {
    alg: &'a str,
    typ: &'a str,
    kid: &'a str,
}

#[derive(Serialize)]
struct Claims<'a> {
    iss: &'a str,
    sub: Uuid,
    aud: Uuid,
    jti: Uuid,
    iat: i64,
    nbf: i64,
    exp: i64,
    project_id: Uuid,
    domain_id: Uuid,
    resource_id: Uuid,
    kind: Kind,
    target: &'a Target,
}

impl Signer {
    /// A signer with a secret seed in base64.
    ///
    /// # Errors
    /// [`SignerError`].
    pub fn from_base64_seed(seed: &Redacted<String>, issuer: impl Into<String>) -> Result<Self, SignerError> {
        let seed = BASE64_STANDARD.decode(seed.reveal().trim()).map_err(|_| SignerError)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| SignerError)?;
        let digest = Sha256::digest(pair.public_key());
        let key_id = BASE64_URL_SAFE_NO_PAD.encode(&digest[..12]);
        Ok(Self { pair, key_id, issuer: issuer.into() })
    }

    /// The name of the key, from its public half, as tokens carry it in `kid`.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// The public key in base64url, as the member `x` of a JWK.
    pub fn public_key(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(self.pair.public_key())
    }

    /// The token of a session: always the same for the same session.
    ///
    /// # Errors
    /// None with sessions of this service; they all serialise.
    pub fn token(&self, session: &Session) -> Result<String, serde_json::Error> {
        let seconds = |text: &str| rfc3339::parse(text).map_or(0, Timestamp::unix_micros) / 1_000_000;
        let issued_at = seconds(&session.issued_at);
        let claims = Claims {
            iss: &self.issuer,
            sub: session.identity_id,
            aud: session.resource_id,
            jti: session.id,
            iat: issued_at,
            nbf: issued_at,
            exp: seconds(&session.expires_at),
            project_id: session.project_id,
            domain_id: session.domain_id,
            resource_id: session.resource_id,
            kind: session.kind,
            target: &session.target,
        };
        let header = Header { alg: "EdDSA", typ: "JWT", kid: &self.key_id };
        let encode = |part: Vec<u8>| BASE64_URL_SAFE_NO_PAD.encode(part);
        let signed =
            format!("{}.{}", encode(serde_json::to_vec(&header)?), encode(serde_json::to_vec(&claims)?));
        let signature = self.pair.sign(signed.as_bytes());
        Ok(format!("{signed}.{}", encode(signature.as_ref().to_vec())))
    }
}
