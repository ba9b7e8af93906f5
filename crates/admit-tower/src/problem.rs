//! Problem documents (RFC 9457), and the same told as gRPC.
//!
//! ```
//! use admit_tower::Problem;
//! use http::{Response, StatusCode};
//!
//! let problem = Problem::new(StatusCode::NOT_FOUND).detail("no such job").with("code", "job_not_found");
//! let response: Response<bytes::Bytes> = problem.into_response();
//! assert_eq!(
//!     response.body(),
//!     r#"{"type":"about:blank","title":"Not Found","status":404,"detail":"no such job","code":"job_not_found"}"#,
//! );
//! ```

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

/// The media type of a problem document.
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The most characters of a detail. It is for people, and may repeat what a request holds, as the name of a member that
/// nobody knows; the answer to a small request must not be a large one.
const MAX_DETAIL_CHARS: usize = 1_000;

/// A problem document: `type`, `title`, `status`, `detail`, then extension members in the order they were added.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    status: StatusCode,
    kind: Cow<'static, str>,
    title: Cow<'static, str>,
    detail: Option<Cow<'static, str>>,
    members: Vec<(Cow<'static, str>, Value)>,
    headers: HeaderMap,
}

impl Problem {
    /// A problem that is told by its status alone: type `about:blank`, and the status's phrase as title.
    pub fn new(status: StatusCode) -> Self {
        Self {
            status,
            kind: Cow::Borrowed("about:blank"),
            title: Cow::Borrowed(status.canonical_reason().unwrap_or("Error")),
            detail: None,
            members: Vec::new(),
            headers: HeaderMap::new(),
        }
    }

    /// Sets `type`, a URI, and the title that goes with it.
    #[must_use]
    pub fn kind(mut self, uri: impl Into<Cow<'static, str>>, title: impl Into<Cow<'static, str>>) -> Self {
        (self.kind, self.title) = (uri.into(), title.into());
        self
    }

    /// Sets what went wrong this time, for a human reader. What is longer than 1,000 characters is cut.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        let mut detail = detail.into();
        if let Some((end, _)) = detail.char_indices().nth(MAX_DETAIL_CHARS) {
            detail = Cow::Owned(format!("{}…", &detail[..end]));
        }
        self.detail = Some(detail);
        self
    }

    /// Adds an extension member, or replaces the one of this name in its place.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Value>) -> Self {
        let (name, value) = (name.into(), value.into());
        match self.members.iter_mut().find(|(known, _)| *known == name) {
            Some(member) => member.1 = value,
            None => self.members.push((name, value)),
        }
        self
    }

    /// Sets a header of the response.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Takes a header back.
    #[must_use]
    pub fn without_header(mut self, name: &HeaderName) -> Self {
        self.headers.remove(name);
        self
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The headers of the response, without `Content-Type`.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The document as JSON.
    pub fn to_json(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into() // Strings and JSON values always serialise.
    }

    /// The response: the status, the headers, and the document.
    pub fn into_response<B: From<Bytes>>(self) -> Response<B> {
        let mut response = Response::new(B::from(self.to_json()));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
        response
    }

    /// The same for a gRPC client: an HTTP 200 without a body whose headers are the trailers, the status in
    /// `grpc-status` and the detail in `grpc-message`.
    pub fn into_grpc_response<B: Default>(self) -> Response<B> {
        let mut response = Response::new(B::default());
        let message = percent_encode(self.detail.as_deref().unwrap_or(&self.title));
        *response.headers_mut() = self.headers;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(HeaderName::from_static("grpc-status"), grpc_status(self.status).into());
        if let Ok(message) = HeaderValue::from_str(&message) {
            headers.insert(HeaderName::from_static("grpc-message"), message);
        }
        response
    }

    /// As the client of this request understands it: gRPC if the request's content type is, else a problem document.
    ///
    /// Only before a service that speaks gRPC: the content type is the client's word, and a refusal told as gRPC has the
    /// status 200, which is leave to whoever asks by HTTP.
    pub fn into_response_to<B: From<Bytes> + Default>(self, request: &HeaderMap) -> Response<B> {
        Protocol::Grpc.answer(self, request)
    }
}

/// What the service behind a layer speaks, and so what its clients understand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP alone, whatever content type a client claims.
    #[default]
    Http,
    /// gRPC too.
    Grpc,
}

impl Protocol {
    /// Whether the request is a call of gRPC.
    pub(crate) fn is_call(self, request: &HeaderMap) -> bool {
        self == Self::Grpc && is_grpc(request)
    }

    /// The problem, as the client of this request understands it.
    pub(crate) fn answer<B: From<Bytes> + Default>(
        self,
        problem: Problem,
        request: &HeaderMap,
    ) -> Response<B> {
        if self.is_call(request) { problem.into_grpc_response() } else { problem.into_response() }
    }
}

/// Whether the request is a gRPC call; `application/grpc-web` is told as HTTP.
fn is_grpc(request: &HeaderMap) -> bool {
    let Some(media) = request.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let essence = media.split(';').next().unwrap_or_default().trim();
    essence == "application/grpc" || essence.starts_with("application/grpc+")
}

/// The code that gRPC has for what the HTTP status says.
fn grpc_status(status: StatusCode) -> u16 {
    match status.as_u16() {
        429 => 8,                   // RESOURCE_EXHAUSTED
        503 => 14,                  // UNAVAILABLE
        409 => 10,                  // ABORTED
        401 => 16,                  // UNAUTHENTICATED
        403 => 7,                   // PERMISSION_DENIED
        400 | 408 | 413 | 422 => 3, // INVALID_ARGUMENT
        code if code >= 500 => 13,  // INTERNAL
        _ => 2,                     // UNKNOWN
    }
}

/// `grpc-message` is percent-encoded: bytes outside of space to `~`, and `%` itself.
fn percent_encode(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &self.kind)?;
        map.serialize_entry("title", &self.title)?;
        map.serialize_entry("status", &self.status.as_u16())?;
        if let Some(detail) = &self.detail {
            map.serialize_entry("detail", detail)?;
        }
        for (name, value) in &self.members {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_replaced_in_its_place() {
        let problem = Problem::new(StatusCode::CONFLICT).with("a", 1).with("b", 2).with("a", 3);
        assert_eq!(
            problem.to_json(),
            r#"{"type":"about:blank","title":"Conflict","status":409,"a":3,"b":2}"#
        );
    }

    /// The name of a member of five million characters, from a body of five thousand bytes that was deflated, came back
    /// whole.
    #[test]
    fn a_detail_is_cut_between_characters() {
        let detail = |chars: usize| Problem::new(StatusCode::BAD_REQUEST).detail("é".repeat(chars)).detail;
        assert_eq!(detail(1_000), Some("é".repeat(1_000).into()));
        assert_eq!(detail(5_000_000), Some(format!("{}…", "é".repeat(1_000)).into()));
    }

    #[test]
    fn only_grpc_is_answered_as_grpc() {
        let told = |media: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
            is_grpc(&headers)
        };
        assert!(told("application/grpc") && told("application/grpc+proto") && told("application/grpc; x=y"));
        assert!(!told("application/grpc-web") && !told("application/json"));
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn a_grpc_message_is_percent_encoded() {
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS).detail("100 % für\nalle");
        let response: Response<Bytes> = problem.into_grpc_response();
        assert_eq!(response.headers()["grpc-message"], "100 %25 f%C3%BCr%0Aalle");
        assert_eq!(
            (response.status(), &response.headers()["grpc-status"]),
            (StatusCode::OK, &HeaderValue::from(8))
        );
    }
}
