//! The head of a request as any upstream reads it, whichever protocol the client speaks.

use http::header::{CONTENT_LENGTH, COOKIE, HOST};
use http::{HeaderMap, HeaderValue, Request};

use super::reserved::Reserved;

/// HTTP/2 names the host in `:authority` and may send a cookie in several lines (RFC 9113, section 8.2.3), which servers
/// of HTTP/1.1 do not expect. `Content-Length: 010` is ten, and eight to some servers.
pub(super) fn settle<B>(request: &mut Request<B>, reserved: &Reserved) {
    let authority = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    if let Some(authority) = authority {
        request.headers_mut().insert(HOST, authority);
    }
    join_cookies(request.headers_mut());
    reserved.drop_lookalikes(request.headers_mut());
    let length =
        request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if let Some(length) = length {
        request.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
}

fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() < 2 {
        return;
    }
    if let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        headers.insert(COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_and_the_cookie_stand_where_http_1_has_them() {
        let mut request = Request::get("https://api.example:8443/a")
            .header("cookie", "a=1")
            .header("cookie", "b=2; c=3")
            .body(())
            .unwrap();
        settle(&mut request, &Reserved::ALWAYS);
        assert_eq!(request.headers().get_all(COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2; c=3"]);
        assert_eq!(request.headers()[HOST], "api.example:8443");
    }
}
