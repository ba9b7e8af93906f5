//! What `POST /memory/ingest` takes.
//!
//! ```json
//! {"ingest_id": "nightly-7", "project": "garden", "items": [{"kind": "note", "text": "Water at dawn", "tags": ["water"]}]}
//! ```
//!
//! Everything is checked here, before any budget is touched: a batch that got this far can be stored.

use admit::idempotency::Fingerprint;
use admit_tower::strict_json::{Object, objects};
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};

/// The largest body, in bytes. A thousand items of a screen of text each.
pub const MAX_BODY_BYTES: usize = 1_048_576;
/// The most items of one batch. One job makes them searchable in one transaction.
pub const MAX_ITEMS: usize = 1_000;
/// The longest id of a batch, in characters.
pub const MAX_INGEST_ID_CHARS: usize = 255;
/// The longest name of a project, in characters.
pub const MAX_PROJECT_CHARS: usize = 200;
/// The longest kind, in characters.
pub const MAX_KIND_CHARS: usize = 64;
/// The longest text of one item, in characters.
pub const MAX_TEXT_CHARS: usize = 32_768;
/// The most tags of one item.
pub const MAX_TAGS: usize = 32;
/// The longest tag, in characters.
pub const MAX_TAG_CHARS: usize = 64;

/// A batch that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The client's id, or the one computed from the content.
    pub ingest_id: String,
    /// Which project all items belong to.
    pub project: String,
    /// What to remember: 1 to [`MAX_ITEMS`].
    pub items: Vec<NewItem>,
    /// The SHA-256 of the content in its canonical form, whatever the id, the white space and the order of members.
    pub fingerprint: Fingerprint,
}

/// One thing to remember.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NewItem {
    /// `note`, `skill` or another word of the client's.
    pub kind: String,
    /// The text itself.
    pub text: String,
    /// Words to find it by besides its own.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
}

/// A body that is no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Not UTF-8.
    #[error("the body is not UTF-8 from byte {0} on")]
    NotUtf8(usize),
    /// Not JSON.
    #[error("the body is not JSON: {0}")]
    NotJson(String),
    /// JSON of another shape: a wrong type, or an unknown, missing or repeated member.
    #[error("{path}: {problem}")]
    Shape {
        /// Where, as in `items[3].tags`.
        path: String,
        /// What is wrong there.
        problem: String,
    },
    /// A value outside of its bounds.
    #[error("{path} is {found}; {takes}")]
    Bounds {
        /// Where, as in `items[3].text`.
        path: String,
        /// What it is.
        found: String,
        /// What is taken there.
        takes: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    #[serde(default, deserialize_with = "present")]
    ingest_id: Option<String>,
    project: String,
    #[serde(deserialize_with = "objects")]
    items: Vec<NewItem>,
}

/// The body without its id: what the computed id and the fingerprint stand for.
#[derive(Serialize)]
struct Content<'a> {
    project: &'a str,
    items: &'a [NewItem],
}

/// A member may be left out, and may not be null.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl Batch {
    /// Reads a body and checks every bound.
    ///
    /// # Errors
    /// [`BatchError`] with the place of the first thing that is wrong.
    pub fn parse(body: &[u8]) -> Result<Self, BatchError> {
        let text = std::str::from_utf8(body).map_err(|e| BatchError::NotUtf8(e.valid_up_to()))?;
        let mut json = serde_json::Deserializer::from_str(text);
        let Object(Body { ingest_id, project, items }) = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| {
                let path = error.path().to_string();
                let problem = error.into_inner();
                match problem.classify() {
                    serde_json::error::Category::Data => {
                        let path = if path == "." { "the body".to_owned() } else { path };
                        BatchError::Shape { path, problem: problem.to_string() }
                    }
                    _ => BatchError::NotJson(problem.to_string()),
                }
            })?;
        json.end().map_err(|error| BatchError::NotJson(error.to_string()))?;

        if let Some(id) = &ingest_id {
            check_text("ingest_id", id, MAX_INGEST_ID_CHARS)?;
        }
        check_text("project", &project, MAX_PROJECT_CHARS)?;
        check_count("items", "items", items.len(), 1, MAX_ITEMS)?;
        for (i, item) in items.iter().enumerate() {
            item.check(&format!("items[{i}]"))?;
        }
        let digest = content_digest(&project, &items);
        let ingest_id = ingest_id.unwrap_or_else(|| format!("jcs1-sha256:{}", hex(&digest)));
        Ok(Self { ingest_id, project, items, fingerprint: Fingerprint::from_bytes(digest) })
    }
}

impl NewItem {
    /// The tags, none if they were left out.
    pub fn tags(&self) -> &[String] {
        self.tags.as_deref().unwrap_or_default()
    }

    fn check(&self, path: &str) -> Result<(), BatchError> {
        check_text(&format!("{path}.kind"), &self.kind, MAX_KIND_CHARS)?;
        check_text(&format!("{path}.text"), &self.text, MAX_TEXT_CHARS)?;
        check_count(&format!("{path}.tags"), "tags", self.tags().len(), 0, MAX_TAGS)?;
        for (i, tag) in self.tags().iter().enumerate() {
            check_text(&format!("{path}.tags[{i}]"), tag, MAX_TAG_CHARS)?;
        }
        Ok(())
    }
}

/// U+0000 is refused because PostgreSQL can store it in no text.
fn check_text(path: &str, text: &str, most: usize) -> Result<(), BatchError> {
    let chars = text.chars().count();
    let takes = format!("it takes 1 to {most} characters, U+0000 not among them");
    if !(1..=most).contains(&chars) {
        return Err(BatchError::Bounds {
            path: path.into(),
            found: format!("{chars} characters long"),
            takes,
        });
    }
    if text.contains('\0') {
        return Err(BatchError::Bounds { path: path.into(), found: "a text with U+0000".into(), takes });
    }
    Ok(())
}

fn check_count(path: &str, what: &str, count: usize, least: usize, most: usize) -> Result<(), BatchError> {
    if (least..=most).contains(&count) {
        return Ok(());
    }
    let takes = format!("it takes {least} to {most} {what}");
    Err(BatchError::Bounds { path: path.into(), found: format!("a list of {count}"), takes })
}

/// SHA-256 of the RFC 8785 form.
fn content_digest(project: &str, items: &[NewItem]) -> [u8; 32] {
    let mut digest = Sha256::new();
    // Strings and lists always have a canonical form, and the digest takes every write.
    let written =
        serde_json_canonicalizer::to_writer(&Content { project, items }, &mut DigestWriter(&mut digest));
    debug_assert!(written.is_ok());
    digest.finalize().into()
}

struct DigestWriter<'a>(&'a mut Sha256);

impl std::io::Write for DigestWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // Writing to a String does not fail.
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(body: &str) -> String {
        Batch::parse(body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn the_computed_id_is_that_of_the_canonical_content() {
        let batch = Batch::parse(br#"{"items":[{"text":"b","kind":"note"}],"project":"a"}"#).unwrap();
        // printf '{"items":[{"kind":"note","text":"b"}],"project":"a"}' | sha256sum
        let canonical = r#"{"items":[{"kind":"note","text":"b"}],"project":"a"}"#;
        assert_eq!(batch.ingest_id, format!("jcs1-sha256:{}", hex(&Sha256::digest(canonical))));

        let named =
            br#" { "project" : "a", "ingest_id": "x", "items": [ { "kind" : "n\u006fte", "text": "b" } ] } "#;
        let named = Batch::parse(named).unwrap();
        assert_eq!((named.ingest_id.as_str(), named.fingerprint), ("x", batch.fingerprint));
        let other = Batch::parse(br#"{"items":[{"text":"c","kind":"note"}],"project":"a"}"#).unwrap();
        assert_ne!(other.fingerprint, batch.fingerprint);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let item = r#"{"kind":"note","text":"b"}"#;
        for (body, expected) in [
            (r#"{"project":"a","items":["#.to_owned(), "the body is not JSON: EOF"),
            (format!(r#"{{"project":"a","items":[{item}]}}{{}}"#), "the body is not JSON: trailing"),
            ("[]".into(), "the body: invalid type: sequence, expected an object"),
            (r#"["id","a",[{"kind":"n","text":"b"}]]"#.into(), "the body: invalid type: sequence"),
            (r#"{"project":"a","items":[["n","b"]]}"#.into(), "items[0]: invalid type: sequence"),
            (format!(r#"{{"project":"a","items":[{item}],"colour":1}}"#), "colour: unknown field `colour`"),
            (format!(r#"{{"project":"a","project":"b","items":[{item}]}}"#), "duplicate field `project`"),
            (
                r#"{"project":"a","items":[{"kind":"x","kind":"y","text":"b"}]}"#.into(),
                "duplicate field `kind`",
            ),
            (format!(r#"{{"items":[{item}]}}"#), "missing field `project`"),
            (format!(r#"{{"project":7,"items":[{item}]}}"#), "project: invalid type: integer `7`"),
            (
                format!(r#"{{"project":"a","ingest_id":null,"items":[{item}]}}"#),
                "ingest_id: invalid type: null",
            ),
            (
                format!(r#"{{"project":"a","ingest_id":"","items":[{item}]}}"#),
                "ingest_id is 0 characters long",
            ),
            (r#"{"project":"a","items":[]}"#.into(), "items is a list of 0; it takes 1 to 1000 items"),
            (
                r#"{"project":"a","items":[{"kind":"n","text":"b","tags":[1]}]}"#.into(),
                "items[0].tags[0]: invalid type",
            ),
            (
                r#"{"project":"a","items":[{"kind":"n","text":"\u0000"}]}"#.into(),
                "items[0].text is a text with U+0000",
            ),
            (
                r#"{"project":"a","items":[{"kind":"n","text":"b","colour":1}]}"#.into(),
                "items[0].colour: unknown",
            ),
            ("[".repeat(100_000), "the body"),
            (format!(r#"{{"project":{}"#, "[".repeat(100_000)), "project: invalid type: sequence"),
            (format!(r#"{{"x":{}"#, "{\"x\":".repeat(100_000)), "x: unknown field `x`"),
        ] {
            let error = error(&body);
            assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        }
    }

    #[test]
    fn ids_of_255_characters_fit_and_of_256_do_not() {
        let body = |chars: usize| {
            let id = "é".repeat(chars);
            format!(r#"{{"project":"a","ingest_id":"{id}","items":[{{"kind":"n","text":"b"}}]}}"#)
        };
        assert!(Batch::parse(body(255).as_bytes()).is_ok());
        assert!(error(&body(256)).starts_with("ingest_id is 256 characters long; it takes 1 to 255"));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_told_by_their_place() {
        assert_eq!(Batch::parse(b"{\"project\":\"\xff\"}"), Err(BatchError::NotUtf8(12)));
    }
}
