//! Reads calls: JSON, strictly, with the place of what is wrong.

use std::sync::Arc;

use admit_tower::strict_json::{self, Object};
use admit_tower::{ReadAhead, ReadBody};
use axum::extract::Request;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use super::problems::{Refusal, Unfit};
use crate::body;

/// The head and the body of a call, which is JSON by its content type and has no more than `max` bytes.
pub(super) async fn whole(
    ahead: &ReadAhead,
    request: Request,
    max: usize,
) -> Result<(Parts, ReadBody), Refusal> {
    let (parts, body) = request.into_parts();
    // A web page can send other sites plain text and forms unasked, and no JSON.
    if !is_json(&parts.headers) {
        return Err(Refusal::MediaType);
    }
    Ok((parts, body::whole(ahead, body, max).await?))
}

/// The head of a call, which holds the room of its body, and that as JSON of no more than `max` bytes.
pub(crate) async fn read(ahead: &ReadAhead, request: Request, max: usize) -> Result<(Parts, Value), Refusal> {
    let (mut parts, ReadBody { bytes, held, .. }) = whole(ahead, request, max).await?;
    parts.extensions.insert(Arc::new(held));
    Ok((parts, parsed(&bytes)?))
}

/// A body as JSON.
pub(super) fn parsed(bytes: &[u8]) -> Result<Value, Unfit> {
    strict_json::parse(bytes).map_err(|error| Unfit::form("", format!("this is not valid JSON: {error}")))
}

fn is_json(headers: &HeaderMap) -> bool {
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    media.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

/// What stands at `pointer`, as a `T`.
pub(crate) fn typed<T: DeserializeOwned>(value: &Value, pointer: &str) -> Result<T, Unfit> {
    match serde_path_to_error::deserialize::<_, Object<T>>(value) {
        Ok(Object(typed)) => Ok(typed),
        Err(error) => {
            let pointer = format!("{pointer}{}", json_pointer(error.path()));
            Err(Unfit::form(pointer, error.into_inner().to_string()))
        }
    }
}

fn json_pointer(path: &Path) -> String {
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } | Segment::Enum { variant: key } => pointer.push_str(&step(key)),
            Segment::Unknown => {}
        }
    }
    pointer
}

/// One step of a pointer, to a member of this name.
pub(super) fn step(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}
