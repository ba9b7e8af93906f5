//! Headers that decide about a request: where its body ends, where it goes, and who sent it. They stand in the head under
//! their own names, and a client takes none of them away.

use http::HeaderMap;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, COOKIE,
    HOST, HeaderName, SET_COOKIE, TRAILER, TRANSFER_ENCODING,
};

use super::forwarded::is_claim;
use super::hop_by_hop;

const RESERVED: [HeaderName; 11] = [
    AUTHORIZATION,
    CACHE_CONTROL,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    COOKIE,
    HOST,
    SET_COOKIE,
    TRAILER,
    TRANSFER_ENCODING,
];

pub(super) fn is_reserved(name: &HeaderName) -> bool {
    RESERVED.contains(name) || is_claim(name)
}

/// Removes headers whose name servers read as one of these, as CGI makes `-` and `_` the same.
pub(super) fn drop_lookalikes(headers: &mut HeaderMap) {
    let is_lookalike = |name: &HeaderName| {
        let read = || name.as_str().replace('_', "-").parse().ok();
        name.as_str().contains('_') && read().is_some_and(|read| is_reserved(&read))
    };
    remove(headers, is_lookalike);
}

/// Removes them from trailers, where none may stand (RFC 9110, section 6.5.1).
pub(super) fn drop_from_trailers(trailers: &mut HeaderMap) {
    hop_by_hop::strip(trailers);
    drop_lookalikes(trailers);
    remove(trailers, is_reserved);
}

/// Removes the headers whose name is one of those.
pub(super) fn remove(headers: &mut HeaderMap, is_one: impl Fn(&HeaderName) -> bool) {
    let names: Vec<HeaderName> = headers.keys().filter(|name| is_one(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}
