//! Tells the upstream who the client is, and how it came.

use std::fmt::Write;
use std::net::IpAddr;

use admit_tower::client_ip::TrustedProxies;
use http::header::{FORWARDED, HOST, HeaderName};
use http::{HeaderMap, HeaderValue};

use super::reserved::remove;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Adds the peer to `X-Forwarded-For` and `Forwarded` (RFC 7239). What a peer that is no trusted proxy has sent there is
/// dropped first: it may be made up. `X-Forwarded-Host` and `-Proto` are those of the first trusted proxy.
pub(super) fn set(headers: &mut HeaderMap, peer: Option<IpAddr>, encrypted: bool, trusted: &TrustedProxies) {
    let proto = if encrypted { "https" } else { "http" };
    let Some(peer) = peer.map(|peer| peer.to_canonical()) else { return };
    if !trusted.trusts(peer) {
        remove(headers, is_claim);
    }
    append(headers, X_FORWARDED_FOR, &peer.to_string());
    let host = headers.get(HOST).cloned();
    let node = match peer {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("\"[{v6}]\""),
    };
    let mut element = format!("for={node};proto={proto}");
    if let Some(host) =
        host.as_ref().and_then(|host| host.to_str().ok()).filter(|host| !host.contains(['"', '\\']))
    {
        let _ = write!(element, ";host=\"{host}\""); // Writing to a String does not fail.
    }
    append(headers, FORWARDED, &element);
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static(proto));
}

/// Whether a header of this name tells who the client is and how it came. Upstreams go by more of them than are set here.
pub(super) fn is_claim(name: &HeaderName) -> bool {
    name == FORWARDED || name.as_str().starts_with("x-forwarded-") || name == "x-real-ip"
}

/// Adds an element to a list, in the one line that some upstreams look at.
fn append(headers: &mut HeaderMap, name: HeaderName, element: &str) {
    let before = headers.get_all(&name).iter().filter_map(|value| value.to_str().ok());
    let list = before.chain([element]).collect::<Vec<_>>().join(", ");
    if let Ok(list) = HeaderValue::try_from(list) {
        headers.insert(name, list);
    }
}

#[cfg(test)]
mod tests {
    use admit_tower::client_ip::ForwardedField;

    use super::*;

    fn set_for(peer: &str, encrypted: bool, trusted: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "api.example"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "outer.example"),
            ("forwarded", "for=1.1.1.1"),
            ("x-forwarded-prefix", "/admin"),
            ("x-real-ip", "1.1.1.1"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let trusted = TrustedProxies::new([trusted.parse().unwrap()], ForwardedField::XForwardedFor);
        set(&mut headers, Some(peer.parse().unwrap()), encrypted, &trusted);
        headers
    }

    #[test]
    fn what_a_trusted_proxy_says_is_kept_and_anybody_else_is_forgotten() {
        let kept = set_for("10.0.0.1", false, "10.0.0.0/8");
        assert_eq!(kept["x-forwarded-for"], "1.1.1.1, 2.2.2.2, 10.0.0.1");
        assert_eq!(kept["forwarded"], "for=1.1.1.1, for=10.0.0.1;proto=http;host=\"api.example\"");
        assert_eq!(
            (&kept["x-forwarded-proto"], &kept["x-forwarded-host"]),
            (&"https".parse().unwrap(), &"outer.example".parse().unwrap())
        );

        assert!(kept.contains_key("x-forwarded-prefix") && kept.contains_key("x-real-ip"));

        let own = set_for("2001:db8::1", true, "10.0.0.0/8");
        // They passed, whoever had sent them.
        assert!(!own.contains_key("x-forwarded-prefix") && !own.contains_key("x-real-ip"));
        assert_eq!(own["x-forwarded-for"], "2001:db8::1");
        assert_eq!(own["forwarded"], "for=\"[2001:db8::1]\";proto=https;host=\"api.example\"");
        assert_eq!(
            (&own["x-forwarded-proto"], &own["x-forwarded-host"]),
            (&"https".parse().unwrap(), &"api.example".parse().unwrap())
        );
    }
}
