//! Headers that are about one connection, and go no further (RFC 9110, section 7.6.1).

use http::header::{
    CONNECTION, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue};

use super::reserved::Reserved;

const ALWAYS: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Removes them: those of the standard, and those that `Connection` names. `TE: trailers` stays, as gRPC asks for it,
/// and `Trailer`, without which HTTP/1.1 passes no trailers on. So does what decides about the request itself, though a
/// client should name it in `Connection`.
pub(super) fn strip(headers: &mut HeaderMap, reserved: &Reserved) {
    let wants_trailers = tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    let named = tokens(headers, &CONNECTION).filter_map(|token| token.parse().ok());
    let named: Vec<HeaderName> = named.filter(|name| !reserved.has(name)).collect();
    for name in ALWAYS.iter().chain(&named) {
        headers.remove(name);
    }
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Whether a body comes in a transfer coding other than `chunked`, which is all that is undone.
pub(super) fn is_coded(headers: &HeaderMap) -> bool {
    tokens(headers, &TRANSFER_ENCODING).any(|coding| !coding.eq_ignore_ascii_case("chunked"))
}

/// The elements of a list of tokens.
pub(super) fn tokens<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_the_connection_goes_no_further() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private"),
            ("connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("x-private", "1"),
            ("te", "gzip, Trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "Basic x"),
            ("content-type", "text/plain"),
            ("authorization", "Bearer x"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip(&mut headers, &Reserved::ALWAYS);
        let mut left: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        left.sort_unstable();
        assert_eq!(left, [("authorization", "Bearer x"), ("content-type", "text/plain"), ("te", "trailers")]);
    }
}
