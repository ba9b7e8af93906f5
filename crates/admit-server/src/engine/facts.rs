//! What a policy may ask about a request.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, Method};
use serde_json::Value;

use crate::policy::Identity;

/// A request, as far as a policy may ask about it.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Its path, without the query.
    pub path: &'a str,
    /// What stands for the names in the route's path.
    pub names: Vec<(String, &'a str)>,
    /// Its query, without the question mark.
    pub query: Option<&'a str>,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Who sent it, behind trusted proxies.
    pub client: IpAddr,
    /// Who sent it, if its API key is known.
    pub identity: Option<&'a Identity>,
    /// How many bytes its body has on the wire, if that is known before it is read.
    pub body_bytes: Option<u64>,
    /// Its body, if it was read and is JSON.
    pub json: Option<&'a Value>,
    /// Its body was read, and is neither empty nor JSON: a service may still find something in it.
    pub is_unreadable: bool,
    /// The entries of an Envoy descriptor; an HTTP request has none.
    pub entries: &'a [(&'a str, &'a str)],
}

impl<'a> Facts<'a> {
    /// Those of a request of which only the headers are known.
    pub fn of_headers(headers: &'a HeaderMap) -> Self {
        Self {
            method: &Method::GET,
            path: "/",
            names: Vec::new(),
            query: None,
            headers,
            client: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            identity: None,
            body_bytes: None,
            json: None,
            is_unreadable: false,
            entries: &[],
        }
    }

    /// The value of an entry.
    pub(super) fn entry(&self, wanted: &str) -> Option<&'a str> {
        self.entries.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value)
    }

    /// What stands for a name in the route's path, as a person writes it: without the percent signs that a
    /// [`Reading`](crate::path::Reading) has for slashes and for percent signs.
    pub(super) fn name(&self, wanted: &str) -> Option<Cow<'a, str>> {
        let (_, value) = self.names.iter().find(|(name, _)| name == wanted)?;
        Some(percent_encoding::percent_decode_str(value).decode_utf8_lossy())
    }

    /// The value of a parameter of the query, without its percent signs. One that stands twice has none, as a service may
    /// read another one of them.
    pub(super) fn parameter(&self, wanted: &str) -> Option<Cow<'a, str>> {
        let pairs = self.query?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let mut values = pairs.filter(|(name, _)| decoded(name) == wanted).map(|(_, value)| decoded(value));
        let first = values.next()?;
        values.next().is_none().then_some(first)
    }
}

fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text);
    }
    let text = text.replace('+', " ");
    Cow::Owned(percent_encoding::percent_decode_str(&text).decode_utf8_lossy().into_owned())
}
