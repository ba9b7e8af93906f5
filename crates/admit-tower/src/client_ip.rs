//! Who the client is, behind proxies that are trusted to say so.
//!
//! A proxy appends the address of its peer to `X-Forwarded-For` or `Forwarded`; whatever stands to the left of what the
//! outermost trusted proxy wrote may be made up. So the list is walked from the right, starting with the connection's
//! peer, for as long as the addresses are those of trusted proxies; the first that is not is the client.
//!
//! ```
//! use admit_tower::client_ip::{self, ForwardedField, TrustedProxies};
//! use http::HeaderMap;
//!
//! let trusted = TrustedProxies::new(["10.0.0.0/8".parse()?], ForwardedField::XForwardedFor);
//! let mut headers = HeaderMap::new();
//! headers.insert("x-forwarded-for", "1.1.1.1, 203.0.113.9, 10.0.0.2".parse()?);
//!
//! let client = trusted.client("10.0.0.1".parse()?, &headers);
//! assert_eq!(client.to_string(), "203.0.113.9");
//! assert_eq!(trusted.client("198.51.100.1".parse()?, &headers).to_string(), "198.51.100.1");
//! let key: admit::Key = client_ip::key(client);
//! # let _ = key;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use admit::Key;
use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};
pub use ipnet::IpNet;
use ipnet::Ipv4Net;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The length of the prefix that one IPv6 site has: its hosts choose the other 64 bits freely.
const IPV6_SITE_PREFIX: u8 = 64;
/// The length of the prefix `::ffff:0:0`, behind which an IPv4 address is mapped into IPv6.
const MAPPED_PREFIX: u8 = 96;

/// The header that the trusted proxies write. Only this one is read: a client can send the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedField {
    /// `X-Forwarded-For`: addresses, with or without port, separated by commas.
    XForwardedFor,
    /// `Forwarded` (RFC 7239): the parameter `for` of each element.
    Forwarded,
}

/// The proxies whose word is taken for who their peer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    nets: Vec<IpNet>,
    field: ForwardedField,
}

impl TrustedProxies {
    /// No proxy is trusted: the client is the connection's peer.
    pub fn none() -> Self {
        Self { nets: Vec::new(), field: ForwardedField::XForwardedFor }
    }

    /// The proxies with an address in one of `nets`, which write `field`.
    ///
    /// Addresses are unwrapped before they are looked for, so a net of mapped IPv4 addresses is unwrapped too:
    /// `::ffff:10.0.0.0/104` is `10.0.0.0/8`. A wider IPv6 net, even `::/0`, has IPv6 addresses alone, although it covers
    /// the mapped ones: whoever trusts all of IPv6 has not said so of IPv4. Name a net of IPv4 beside it.
    pub fn new(nets: impl IntoIterator<Item = IpNet>, field: ForwardedField) -> Self {
        Self { nets: nets.into_iter().map(unwrap).collect(), field }
    }

    /// The client of a request that came over a connection from `peer`.
    ///
    /// Where a trusted proxy names no address (`unknown`, an obfuscated identifier, an empty or broken element), the
    /// client is that proxy: such clients share what is kept by address, and none can choose whose it is. Where all
    /// addresses are trusted, it is the leftmost. IPv4 addresses mapped into IPv6 are unwrapped.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        let (name, quotes) = match self.field {
            ForwardedField::XForwardedFor => (X_FORWARDED_FOR, false),
            ForwardedField::Forwarded => (FORWARDED, true),
        };
        for value in headers.get_all(name).iter().rev() {
            let mut rest = Some(value.as_bytes());
            while let Some(list) = rest {
                if !self.trusts(client) {
                    return client;
                }
                let (left, element) = split_last(list, quotes);
                let address = match self.field {
                    ForwardedField::XForwardedFor => node(element),
                    ForwardedField::Forwarded => forwarded_for(element),
                };
                let Some(address) = address else { return client };
                (client, rest) = (address.to_canonical(), left);
            }
        }
        client
    }

    /// Whether the address is that of a trusted proxy.
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.nets.iter().any(|net| net.contains(&address))
    }
}

/// The net of IPv4 addresses that a net of mapped ones stands for; others as they are.
fn unwrap(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let inner = v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(MAPPED_PREFIX));
    inner.and_then(|(address, prefix)| Ipv4Net::new(address, prefix).ok()).map_or(net, IpNet::V4)
}

/// The addresses that count as one client: an IPv4 address alone, an IPv6 address with its /64.
pub fn group(address: IpAddr) -> IpNet {
    let (address, prefix) = match address.to_canonical() {
        IpAddr::V4(v4) => (IpAddr::V4(v4), 32),
        IpAddr::V6(v6) => (IpAddr::V6(v6), IPV6_SITE_PREFIX),
    };
    IpNet::new(address, prefix).map_or_else(|_| address.into(), |net| net.trunc())
}

/// The bucket key of a client known by its address alone.
pub fn key(address: IpAddr) -> Key {
    Key::hashed(group(address).to_string())
}

/// The last element of a list, and what is left of it if there is more. A comma within quotes does not count.
///
/// Split from the right, so that an open quote sent by a client cannot swallow what a proxy appended.
fn split_last(list: &[u8], quotes: bool) -> (Option<&[u8]>, &[u8]) {
    let mut quoted = false;
    for (i, byte) in list.iter().enumerate().rev() {
        match byte {
            b'"' if quotes => {
                let escapes = list[..i].iter().rev().take_while(|byte| **byte == b'\\').count();
                quoted ^= escapes % 2 == 0;
            }
            b',' if !quoted => return (Some(&list[..i]), &list[i + 1..]),
            _ => {}
        }
    }
    (None, list)
}

/// The address in the parameter `for` of one element of `Forwarded`.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let (mut pairs, mut quoted, mut escaped) = (vec![Vec::new()], false, false);
    for &byte in element {
        let pair = match byte {
            b';' if !quoted => {
                pairs.push(Vec::new());
                continue;
            }
            b'\\' if quoted && !escaped => {
                escaped = true;
                continue;
            }
            b'"' if !escaped => {
                quoted = !quoted;
                continue;
            }
            _ => pairs.last_mut()?,
        };
        pair.push(byte);
        escaped = false;
    }
    if quoted {
        return None;
    }
    let mut values = pairs.iter().filter_map(|pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (pair[..equals].trim_ascii(), &pair[equals + 1..]);
        name.eq_ignore_ascii_case(b"for").then_some(value)
    });
    match (values.next(), values.next()) {
        (Some(value), None) => node(value),
        _ => None, // Missing, or said twice.
    }
}

/// The address of a node: alone, or with a port. IPv6 with a port stands in brackets, without one it may.
fn node(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t']);
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let (address, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            (IpAddr::V6(address.parse::<Ipv6Addr>().ok()?), port)
        }
        None => {
            let colon = text.find(':')?;
            (IpAddr::V4(text[..colon].parse::<Ipv4Addr>().ok()?), &text[colon..])
        }
    };
    (port.is_empty() || is_port(port.strip_prefix(':')?)).then_some(address)
}

/// A number, or an obfuscated port (RFC 7239, section 6).
fn is_port(text: &str) -> bool {
    let is_obfuscated = |rest: &str| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    text.parse::<u16>().is_ok() || text.strip_prefix('_').is_some_and(is_obfuscated)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn trusted(field: ForwardedField) -> TrustedProxies {
        TrustedProxies::new(["10.0.0.0/8", "fd00::/8"].map(|net| net.parse().unwrap()), field)
    }

    fn client(field: ForwardedField, lines: &[&[u8]]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            let name = match field {
                ForwardedField::XForwardedFor => X_FORWARDED_FOR,
                ForwardedField::Forwarded => FORWARDED,
            };
            headers.append(name, HeaderValue::from_bytes(line).unwrap());
        }
        trusted(field).client("::ffff:10.0.0.1".parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn x_forwarded_for_is_walked_from_the_right_over_all_lines() {
        let client = |lines: &[&str]| {
            let lines: Vec<_> = lines.iter().map(|line| line.as_bytes()).collect();
            client(ForwardedField::XForwardedFor, &lines)
        };
        assert_eq!(client(&[]), "10.0.0.1");
        assert_eq!(client(&["1.1.1.1, 203.0.113.9"]), "203.0.113.9");
        assert_eq!(client(&["1.1.1.1", "203.0.113.9,10.0.0.3", "10.0.0.2"]), "203.0.113.9");
        assert_eq!(client(&["10.0.0.3, 10.0.0.2"]), "10.0.0.3");
        assert_eq!(client(&["203.0.113.9:4711, [fd00::1]:80"]), "203.0.113.9");
        assert_eq!(client(&["2001:db8::1"]), "2001:db8::1");
        assert_eq!(client(&["::ffff:203.0.113.9"]), "203.0.113.9");
        assert_eq!(client(&["1.1.1.1, unknown, 10.0.0.2"]), "10.0.0.2");
        assert_eq!(client(&["1.1.1.1,, 10.0.0.2"]), "10.0.0.2");
        assert_eq!(client(&["1.1.1.1", ""]), "10.0.0.1");
        assert_eq!(client(&["1.1.1.1, 203.0.113.9:port"]), "10.0.0.1");
    }

    #[test]
    fn forwarded_is_walked_from_the_right() {
        let client = |line: &str| client(ForwardedField::Forwarded, &[line.as_bytes()]);
        assert_eq!(client("for=1.1.1.1, for=203.0.113.9;proto=https"), "203.0.113.9");
        assert_eq!(client(r#"For="[2001:db8:cafe::17]:4711""#), "2001:db8:cafe::17");
        assert_eq!(client(r#"for="203.0.113.9:_obf";by=_x, for=10.1.1.1"#), "203.0.113.9");
        for hidden in ["for=unknown", "for=_hidden", "proto=http", "for=1.1.1.1;for=2.2.2.2", "for=\"1.1.1.1"]
        {
            assert_eq!(client(&format!("for=1.1.1.1, {hidden}, for=10.0.0.2")), "10.0.0.2", "{hidden}");
        }
    }

    #[test]
    fn an_open_quote_of_a_client_swallows_nothing() {
        let client = |line: &str| client(ForwardedField::Forwarded, &[line.as_bytes()]);
        assert_eq!(client(r#"for=", for="[2001:db8::1]""#), "2001:db8::1");
        assert_eq!(client(r#"for="1.1.1.1, for=203.0.113.9"#), "203.0.113.9");
        // A host that the proxy copied and escaped: its comma and its `for` are text.
        assert_eq!(client(r#"for=203.0.113.9;host="a\", for=1.1.1.1;x=\"""#), "203.0.113.9");
    }

    #[test]
    fn the_other_field_is_not_read() {
        let mut headers = HeaderMap::new();
        headers.insert(FORWARDED, HeaderValue::from_static("for=1.1.1.1"));
        let peer = "10.0.0.1".parse().unwrap();
        assert_eq!(trusted(ForwardedField::XForwardedFor).client(peer, &headers), peer);
    }

    /// Once a net of mapped addresses matched nothing, so that its proxies counted as the clients.
    #[test]
    fn a_net_of_mapped_addresses_is_the_net_of_the_addresses() {
        let client = |nets: &[&str], peer: &str| {
            let nets = nets.iter().map(|net| net.parse().unwrap());
            let mut headers = HeaderMap::new();
            headers.insert(X_FORWARDED_FOR, HeaderValue::from_static("203.0.113.9"));
            let trusted = TrustedProxies::new(nets, ForwardedField::XForwardedFor);
            trusted.client(peer.parse().unwrap(), &headers).to_string()
        };
        for peer in ["10.0.0.1", "::ffff:10.0.0.1"] {
            assert_eq!(client(&["::ffff:10.0.0.0/104"], peer), "203.0.113.9");
            assert_eq!(client(&["::ffff:10.1.2.3/104"], peer), "203.0.113.9", "bits of a host do not matter");
            assert_eq!(client(&["::ffff:10.0.0.1/128"], peer), "203.0.113.9");
            assert_eq!(client(&["::ffff:0:0/96"], peer), "203.0.113.9");
            assert_eq!(client(&["::ffff:11.0.0.0/104"], peer), "10.0.0.1");
            // Who trusts all of IPv6 has not said so of IPv4.
            for wider in ["::/0", "::ffff:0:0/95", "::/64"] {
                assert_eq!(client(&[wider], peer), "10.0.0.1", "{wider}");
            }
            assert_eq!(client(&["::/0", "0.0.0.0/0"], peer), "203.0.113.9");
        }
        assert_eq!(client(&["::/0"], "2001:db8::1"), "203.0.113.9");
    }

    #[test]
    fn an_ipv6_site_is_one_client() {
        let key = |address: &str| key(address.parse().unwrap());
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_ne!(key("203.0.113.1"), key("203.0.113.2"));
        assert_eq!(key("::ffff:203.0.113.1"), key("203.0.113.1"));
    }

    proptest! {
        #[test]
        fn what_a_client_sends_ahead_never_changes_who_it_is(
            made_up in proptest::collection::vec(r#"([ -~]|[\t\x80-\xff]|for=|"|,|10\.0\.0\.1|1\.1\.1\.1){0,40}"#, 0..4),
            same_line in any::<bool>(),
            hops in 0_u8..4,
        ) {
            for field in [ForwardedField::XForwardedFor, ForwardedField::Forwarded] {
                let say = |address: String| match field {
                    ForwardedField::XForwardedFor => address,
                    ForwardedField::Forwarded => format!("for={address}"),
                };
                let mut appended = say("203.0.113.9".to_owned());
                for hop in 0..hops {
                    appended = format!("{appended}, {}", say(format!("10.0.0.{hop}")));
                }
                let mut lines: Vec<Vec<u8>> = made_up.iter().map(|line| line.clone().into_bytes()).collect();
                match lines.last_mut() {
                    Some(last) if same_line => last.extend(format!(", {appended}").into_bytes()),
                    _ => lines.push(appended.into_bytes()),
                }
                let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
                prop_assert_eq!(client(field, &lines), "203.0.113.9");
            }
        }
    }
}
