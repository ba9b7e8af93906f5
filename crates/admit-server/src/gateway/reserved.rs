//! Headers that decide about a request: where its body ends, where it goes, and who sent it. They stand in the head under
//! their own names, and a client takes none of them away.

use http::HeaderMap;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, COOKIE,
    FORWARDED, HOST, HeaderName, SET_COOKIE, TRAILER, TRANSFER_ENCODING,
};

use super::forwarded::{X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO};
use super::hop_by_hop;

const RESERVED: [HeaderName; 16] = [
    AUTHORIZATION,
    CACHE_CONTROL,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    COOKIE,
    FORWARDED,
    HOST,
    SET_COOKIE,
    TRAILER,
    TRANSFER_ENCODING,
    X_FORWARDED_FOR,
    X_FORWARDED_HOST,
    X_FORWARDED_PROTO,
    HeaderName::from_static("x-real-ip"),
];

pub(super) fn is_reserved(name: &HeaderName) -> bool {
    RESERVED.contains(name)
}

/// Removes headers whose name servers read as one of these, as CGI makes `-` and `_` the same.
pub(super) fn drop_lookalikes(headers: &mut HeaderMap) {
    let is_lookalike = |name: &&HeaderName| {
        let name = name.as_str();
        name.contains('_') && RESERVED.iter().any(|reserved| *name.replace('_', "-") == *reserved)
    };
    let lookalikes: Vec<HeaderName> = headers.keys().filter(is_lookalike).cloned().collect();
    for name in lookalikes {
        headers.remove(name);
    }
}

/// Removes them from trailers, where none may stand (RFC 9110, section 6.5.1).
pub(super) fn drop_from_trailers(trailers: &mut HeaderMap) {
    hop_by_hop::strip(trailers);
    drop_lookalikes(trailers);
    for name in RESERVED {
        trailers.remove(name);
    }
}
