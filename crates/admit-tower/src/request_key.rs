//! Finds a request's idempotency key and fingerprint.

use admit::idempotency::{Fingerprint, RecordKey};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use sfv::{BareItem, Item, ItemSerializer, Parser, StringRef};
use sha2::{Digest, Sha256};

use crate::idempotent::{FingerprintOf, Idempotent, IfMissing, KeyFrom};
use crate::{JsonPointer, Rejection, strict_json};

/// The header of keys (draft-ietf-httpapi-idempotency-key-header-07).
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The longest key, in characters.
const MAX_KEY_CHARS: usize = 255;

/// The fingerprint of no payload, for a look at whether a key has a record at all.
pub(crate) const UNKNOWN_PAYLOAD: Fingerprint = Fingerprint::from_bytes([0; 32]);

/// What a request is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey {
    pub(crate) text: String,
    pub(crate) record: RecordKey,
    pub(crate) fingerprint: Fingerprint,
    /// Whether the key was made from the content, so that the client has to be told.
    pub(crate) is_content_key: bool,
}

impl RequestKey {
    /// The header that tells the client a key it did not send.
    pub(crate) fn echo(&self) -> Option<HeaderValue> {
        if !self.is_content_key {
            return None;
        }
        let text = StringRef::from_str(&self.text).ok()?;
        HeaderValue::from_str(&ItemSerializer::new().bare_item(text).finish()).ok()
    }
}

/// What can be said before the body is read.
pub(crate) enum Glance {
    /// The body is needed; this is the key if the header has it.
    NeedsBody(Option<String>),
    /// The request runs like one that is not idempotent.
    Unkeyed,
}

/// Looks at the header.
pub(crate) fn glance(how: &Idempotent, headers: &HeaderMap) -> Result<Glance, Rejection> {
    if matches!(how.key, KeyFrom::Body { .. }) {
        return Ok(Glance::NeedsBody(None));
    }
    match (header_key(headers)?, how.if_missing) {
        (Some(key), _) => Ok(Glance::NeedsBody(Some(key))),
        (None, IfMissing::ContentKey) => Ok(Glance::NeedsBody(None)),
        (None, IfMissing::RunUnkeyed) => Ok(Glance::Unkeyed),
        (None, IfMissing::Reject) => {
            Err(Rejection::KeyMissing { place: "the header Idempotency-Key".to_owned() })
        }
    }
}

fn header_key(headers: &HeaderMap) -> Result<Option<String>, Rejection> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(malformed("the header Idempotency-Key stands twice"));
    }
    let Ok(text) = value.to_str() else {
        return Err(malformed("the header Idempotency-Key holds more than visible ASCII characters"));
    };
    let text = text.trim();
    let key = if text.starts_with('"') {
        match Parser::new(text).parse::<Item>() {
            Ok(Item { bare_item: BareItem::String(key), .. }) => key.as_str().to_owned(),
            _ => return Err(malformed("the header Idempotency-Key is not a structured-field string")),
        }
    } else {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\",;\\".contains(&byte);
        if !text.bytes().all(is_plain) {
            return Err(malformed("the header Idempotency-Key is neither a quoted string nor a plain word"));
        }
        text.to_owned()
    };
    check_length(key).map(Some)
}

fn check_length(key: String) -> Result<String, Rejection> {
    match key.chars().count() {
        1..=MAX_KEY_CHARS => Ok(key),
        length => Err(malformed(format!(
            "the idempotency key has {length} characters; it takes 1 to {MAX_KEY_CHARS}"
        ))),
    }
}

fn malformed(reason: impl Into<String>) -> Rejection {
    Rejection::KeyMalformed { reason: reason.into() }
}

/// The key and the fingerprint, now that the body is there; nothing if the request runs unkeyed.
pub(crate) fn request_key(
    how: &Idempotent,
    request: &Parts,
    header_key: Option<String>,
    body: &Bytes,
) -> Result<Option<RequestKey>, Rejection> {
    let pointer = match &how.key {
        KeyFrom::Header => None,
        KeyFrom::Body { pointer } => Some(pointer),
    };
    let needs_json =
        pointer.is_some() || header_key.is_none() || how.fingerprint == FingerprintOf::CanonicalJson;
    let mut json = match needs_json {
        true => Some(
            strict_json::parse(body)
                .map_err(|error| malformed(format!("the body is not valid JSON: {error}")))?,
        ),
        false => None,
    };
    let sent = match (&mut json, pointer) {
        (Some(json), Some(pointer)) => body_key(json, pointer)?,
        _ => header_key,
    };
    let is_content_key = match (&sent, how.if_missing) {
        (Some(_), _) => false,
        (None, IfMissing::ContentKey) => true,
        (None, IfMissing::RunUnkeyed) => return Ok(None),
        (None, IfMissing::Reject) => {
            let place = format!("the member {} of the body", pointer.map_or("", JsonPointer::as_str));
            return Err(Rejection::KeyMissing { place });
        }
    };
    let canonical = match &json {
        Some(json) if is_content_key || how.fingerprint == FingerprintOf::CanonicalJson => {
            let form = strict_json::canonical(json);
            Some(form.ok_or_else(|| {
                malformed("the body holds an integer beyond ±(2^53 - 1); send it as a string")
            })?)
        }
        _ => None,
    };
    let text = match (sent, &canonical) {
        (Some(key), _) => key,
        (None, canonical) => content_key(canonical.as_deref().unwrap_or_default()),
    };
    Ok(Some(RequestKey {
        record: record(how, request, &text),
        fingerprint: fingerprint(request.uri.query(), canonical.as_deref().unwrap_or(body)),
        text,
        is_content_key,
    }))
}

/// The record of a key.
pub(crate) fn record(how: &Idempotent, request: &Parts, key: &str) -> RecordKey {
    let route = how.route.as_deref().unwrap_or_else(|| request.uri.path());
    RecordKey::new(&how.tenant, request.method.as_str(), route, key)
}

/// Takes the key's member out of the body.
fn body_key(json: &mut Value, pointer: &JsonPointer) -> Result<Option<String>, Rejection> {
    match pointer.take_from(json) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(key)) => check_length(key).map(Some),
        Some(_) => Err(malformed(format!("the member {pointer} of the body is not a string"))),
    }
}

fn content_key(canonical: &[u8]) -> String {
    use std::fmt::Write;
    let mut key = "jcs1-sha256:".to_owned();
    for byte in Sha256::digest(canonical) {
        let _ = write!(key, "{byte:02x}"); // Writing to a String does not fail.
    }
    key
}

/// SHA-256 of the payload; with a query, of its length, the query, and the payload.
fn fingerprint(query: Option<&str>, payload: &[u8]) -> Fingerprint {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Fingerprint::of(payload) };
    let mut digest = Sha256::new();
    digest.update((query.len() as u64).to_be_bytes());
    digest.update(query);
    digest.update(payload);
    Fingerprint::from_bytes(digest.finalize().into())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const ID: JsonPointer = JsonPointer::from_static("/id");

    fn by_header(value: &str) -> Result<Option<String>, Rejection> {
        let mut headers = HeaderMap::new();
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        header_key(&headers)
    }

    fn by_body(how: &Idempotent, uri: &str, body: &str) -> Result<Option<RequestKey>, Rejection> {
        let (parts, ()) = Request::post(uri).body(()).unwrap().into_parts();
        request_key(how, &parts, None, &Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn a_quoted_key_and_the_same_without_quotes_are_one() {
        assert_eq!(by_header(r#""8e03978e-40d5""#), Ok(Some("8e03978e-40d5".to_owned())));
        assert_eq!(by_header("8e03978e-40d5"), Ok(Some("8e03978e-40d5".to_owned())));
        assert_eq!(by_header(r#""a \"b\" c""#), Ok(Some(r#"a "b" c"#.to_owned())));
    }

    #[test]
    fn what_is_no_key_is_malformed() {
        for wrong in ["", "\"\"", "\"open", "a b", "a,b", "\"a\", \"b\"", "é", &"x".repeat(256)] {
            assert!(matches!(by_header(wrong), Err(Rejection::KeyMalformed { .. })), "{wrong}");
        }
        assert!(by_header(&"x".repeat(255)).is_ok());
        let mut twice = HeaderMap::new();
        twice.append(IDEMPOTENCY_KEY, HeaderValue::from_static("a"));
        twice.append(IDEMPOTENCY_KEY, HeaderValue::from_static("a"));
        assert!(header_key(&twice).is_err());
    }

    /// Once such a key was said to have 0 characters.
    #[test]
    fn a_key_that_is_not_ascii_is_told_so() {
        for wrong in ["é", "\"schlüssel\""] {
            let Err(Rejection::KeyMalformed { reason }) = by_header(wrong) else { panic!("{wrong}") };
            assert!(reason.contains("ASCII"), "{reason}");
        }
    }

    #[test]
    fn a_content_key_does_not_depend_on_order_or_white_space_or_the_id_itself() {
        let how = Idempotent::by_body("tenant", ID).if_missing(IfMissing::ContentKey);
        let computed = by_body(&how, "/x", r#"{"b": 1, "a": "x"}"#).unwrap().unwrap();
        assert_eq!(by_body(&how, "/x", r#"{"a":"x","id":null,"b":1}"#), Ok(Some(computed.clone())));
        // `printf '{"a":"x","b":1}' | sha256sum`
        assert_eq!(
            computed.text,
            "jcs1-sha256:cdab067e9f3beb32d1252cfd63e492592fecbf591b0d08cadb24bb17f3864246"
        );
        assert_eq!(computed.echo().unwrap(), format!("\"{}\"", computed.text));
        // A client that sends the echoed key with the same content replays.
        let sent =
            by_body(&how, "/x", &format!(r#"{{"a":"x","b":1,"id":"{}"}}"#, computed.text)).unwrap().unwrap();
        assert_eq!((sent.record, sent.fingerprint), (computed.record, computed.fingerprint));
        assert_eq!(sent.echo(), None);
    }

    #[test]
    fn the_query_is_part_of_the_payload() {
        let how = Idempotent::by_body("tenant", ID);
        let of = |uri| by_body(&how, uri, r#"{"id":"1"}"#).unwrap().unwrap();
        assert_eq!(of("/x?a=1").record, of("/x").record);
        assert_ne!(of("/x?a=1").fingerprint, of("/x").fingerprint);
        assert_ne!(of("/x?a=1").fingerprint, of("/x?a=2").fingerprint);
    }

    #[test]
    fn a_body_without_a_usable_key_is_told_why() {
        let how = Idempotent::by_body("tenant", ID);
        assert!(matches!(by_body(&how, "/x", "{}"), Err(Rejection::KeyMissing { .. })));
        for wrong in [r#"{"id":7}"#, r#"{"id":""}"#, "{", r#"{"id":"a","id":"b"}"#, r#"{"id":"a","n":1e400}"#]
        {
            assert!(matches!(by_body(&how, "/x", wrong), Err(Rejection::KeyMalformed { .. })), "{wrong}");
        }
        assert_eq!(by_body(&how.if_missing(IfMissing::RunUnkeyed), "/x", "[]"), Ok(None));
    }
}
