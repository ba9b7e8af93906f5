//! The file's form. What its texts mean is read one step later, with their positions at hand.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use toml::Spanned;

use crate::redacted::Redacted;

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileForm {
    pub(super) signing: Spanned<SigningForm>,
    #[serde(default)]
    pub(super) domains: Vec<DomainForm>,
    #[serde(default)]
    pub(super) projects: Vec<ProjectForm>,
    #[serde(default)]
    pub(super) resources: Vec<ResourceForm>,
    #[serde(default)]
    pub(super) nodes: Vec<NodeForm>,
    #[serde(default)]
    pub(super) operators: Vec<OperatorForm>,
    #[serde(default)]
    pub(super) secrets: Vec<SecretForm>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SigningForm {
    pub(super) issuer: Spanned<String>,
    #[serde(default, deserialize_with = "secret_text")]
    pub(super) seed: Option<Redacted<String>>,
    pub(super) seed_file: Option<String>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DomainForm {
    pub(super) id: Spanned<String>,
    pub(super) max_session_ttl_seconds: Spanned<u64>,
    pub(super) issuance: Option<Spanned<String>>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProjectForm {
    pub(super) id: Spanned<String>,
    pub(super) domain: Spanned<String>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResourceForm {
    pub(super) id: Spanned<String>,
    pub(super) project: Spanned<String>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeForm {
    pub(super) id: Spanned<String>,
    pub(super) domain: Spanned<String>,
    #[serde(default)]
    pub(super) keys: Vec<KeyForm>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyForm {
    pub(super) id: Option<Spanned<String>>,
    pub(super) sha256: Spanned<String>,
    #[serde(default)]
    pub(super) revoked: bool,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OperatorForm {
    pub(super) identity: Spanned<String>,
    pub(super) token_sha256: Spanned<String>,
    #[serde(default)]
    pub(super) projects: Vec<Spanned<String>>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SecretForm {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) nodes: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) domains: Vec<Spanned<String>>,
    pub(super) versions: Vec<VersionForm>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VersionForm {
    pub(super) version: Spanned<u64>,
    #[serde(default, deserialize_with = "secret_text")]
    pub(super) value: Option<Redacted<String>>,
    #[serde(default, deserialize_with = "secret_text")]
    pub(super) value_base64: Option<Redacted<String>>,
}

/// A text that an error message must not show, as serde's own would when it is of another type.
fn secret_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Redacted<String>>, D::Error> {
    struct Secret;

    impl Visitor<'_> for Secret {
        type Value = Redacted<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text")
        }

        fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
            Ok(Redacted::new(text.to_owned()))
        }

        fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
            Ok(Redacted::new(text))
        }

        fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
            Err(E::custom("a secret is a text; put it in quotes"))
        }

        fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
            Err(E::custom("a secret is a text; put it in quotes"))
        }

        fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
            Err(E::custom("a secret is a text; put it in quotes"))
        }
    }

    deserializer.deserialize_string(Secret).map(Some)
}
