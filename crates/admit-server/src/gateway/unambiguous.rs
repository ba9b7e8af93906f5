//! Refuses requests that two servers could take for two hosts (RFC 9112, section 3.2): what a proxy in front checked for
//! one would be served by the other.

use axum::extract::Request;
use axum::response::Response;
use http::header::{CONNECTION, HOST};
use http::uri::Authority;
use http::{HeaderValue, Method, StatusCode, Version};

use super::failure::problem;

/// The answer to those, 400, before they are charged.
pub(crate) fn unambiguous(request: &Request) -> Option<Response> {
    let why = check(request).err()?;
    let mut response = problem(StatusCode::BAD_REQUEST, why, "bad_request").into_response();
    if request.version() < Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Some(response)
}

fn check<B>(request: &Request<B>) -> Result<(), &'static str> {
    if *request.method() == Method::CONNECT {
        return Err("this is a gateway to one service, and makes no tunnels");
    }
    if request.uri().path().is_empty() {
        return Err("its target is no path");
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let (host, None) = (hosts.next(), hosts.next()) else { return Err("the request has more than one Host") };
    let host = match host.map(|host| Authority::try_from(host.as_bytes())) {
        None => None,
        Some(Ok(host)) if is_plain(&host) => Some(host),
        Some(_) => return Err("its Host is no host"),
    };
    match (request.uri().authority(), host) {
        (Some(named), _) if named.as_str().contains('@') => Err("its target names a user"),
        (Some(named), Some(host)) if *named != host => Err("its target and its Host are not the same"),
        (None, None) if request.version() > Version::HTTP_10 => Err("the request has no Host"),
        _ => Ok(()),
    }
}

/// No user, no two hosts that something has joined, and a number if there is a port.
fn is_plain(host: &Authority) -> bool {
    let has_port = host.as_str().len() > host.host().len();
    !host.as_str().contains(['@', ',']) && (!has_port || host.port_u16().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_good(version: Version, uri: &str, hosts: &[&str]) -> bool {
        let mut request = Request::builder().version(version).uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        check(&request.body(()).unwrap()).is_ok()
    }

    #[test]
    fn a_request_is_for_one_host() {
        let h1 = |uri: &str, hosts: &[&str]| is_good(Version::HTTP_11, uri, hosts);
        assert!(h1("/", &["a"]) && h1("/", &["a:80"]) && h1("/", &["[::1]:80"]) && h1("http://a/", &["A"]));
        assert!(!h1("/", &[]) && !h1("/", &["a", "a"]) && !h1("/", &["a", "b"]));
        assert!(!h1("http://a/", &["b"]) && !h1("http://a/", &["a:81"]) && !h1("http://u@a/", &["u@a"]));
        for host in ["", "a b", "a/b", "a,b", "u@a", "a:x", "http://a", "a?b"] {
            assert!(!h1("/", &[host]), "{host:?}");
        }
        assert!(is_good(Version::HTTP_10, "/", &[]) && !h1("a:80", &["a:80"]) && h1("*", &["a"]));
        assert!(is_good(Version::HTTP_2, "http://a/", &[]) && is_good(Version::HTTP_2, "http://a/", &["a"]));
        assert!(!is_good(Version::HTTP_2, "http://a/", &["b"]) && !is_good(Version::HTTP_2, "/", &[]));
    }
}
