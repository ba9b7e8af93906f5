//! The service behind the gateway: where it is, and how long it may take.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;

use super::idempotency::duration;
use super::problems::Problems;
use super::section::{Section, Value, Wrong, list, parsed};
use super::tls::file;

/// The most upstreams: a request that nobody takes is tried on each.
const MAX_UPSTREAMS: usize = 64;

/// What the gateway is told of the service behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstreams {
    /// Where it is served, all of them alike. Without any there is no gateway.
    pub urls: Vec<Upstream>,
    /// A file of roots that sign its certificates, beside those of the system.
    pub ca: Option<PathBuf>,
    /// How long it may take.
    pub limits: UpstreamLimits,
}

/// The URL of an upstream: `http://`, `https://` or `h2c://` (HTTP/2 in the clear), a host, and no path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream(pub Uri);

/// A text that is no URL of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// No URL of a host.
    #[error("{0:?} is no upstream's URL")]
    Url(String),
    /// With a user or a password, which is not repeated.
    #[error("this URL has a user or a password in it, and an upstream is sent none")]
    Userinfo,
}

/// How long an exchange with an upstream may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamLimits {
    /// Until there is a connection, its TLS handshake included. 5 s by default.
    pub connect: Duration,
    /// Until the head of the response, from when the upstream was last given something of the request. 60 s by default.
    pub head: Duration,
    /// Between two pieces of bodies, or of an upgraded connection, in whichever direction. 60 s by default.
    pub idle: Duration,
    /// All of it, to the last byte of the response. 1 h by default.
    pub total: Duration,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            head: Duration::from_secs(60),
            idle: Duration::from_secs(60),
            total: Duration::from_secs(60 * 60),
        }
    }
}

impl FromStr for Upstream {
    type Err = UpstreamError;

    fn from_str(text: &str) -> Result<Self, UpstreamError> {
        if text.contains('@') {
            return Err(UpstreamError::Userinfo);
        }
        let uri: Option<Uri> = text.parse().ok();
        let fits = |uri: &Uri| {
            matches!(uri.scheme_str(), Some("http" | "https" | "h2c"))
                && uri.host().is_some_and(|host| !host.is_empty())
                && uri.path() == "/"
                && uri.query().is_none()
        };
        uri.filter(fits).map(Self).ok_or_else(|| UpstreamError::Url(text.to_owned()))
    }
}

impl Upstreams {
    pub(super) fn read<'a>(section: &mut Section<'a>, problems: &'a Problems) -> Self {
        let urls = section.member("upstream", |value| urls(value, problems));
        let ca = section.member("upstream_ca", file);
        let limits = section.member("upstream_limits", |value| UpstreamLimits::read(value, problems));
        Self { urls: urls.unwrap_or_default(), ca, limits: limits.unwrap_or_default() }
    }
}

fn urls(value: Value<'_>, problems: &Problems) -> Result<Vec<Upstream>, Wrong> {
    const WANTED: &str = "a URL without a path, as in \"http://localhost:3000\"";
    let named = value.get_ref().as_array().map_or(1, |urls| urls.len());
    match named {
        0 => Err(Wrong::new(value, "this names no upstream", format!("write {WANTED}"))),
        1..=MAX_UPSTREAMS => Ok(list(value, problems, parsed(WANTED))),
        _ => {
            let message = format!("these are {named} upstreams");
            Err(Wrong::new(value, message, format!("name {MAX_UPSTREAMS} at most")))
        }
    }
}

impl UpstreamLimits {
    fn read<'a>(value: Value<'a>, problems: &'a Problems) -> Result<Self, Wrong> {
        let mut section = Section::of("upstream_limits", value, problems)?;
        let default = Self::default();
        let limits = Self {
            connect: section.member("connect", duration).unwrap_or(default.connect),
            head: section.member("head", duration).unwrap_or(default.head),
            idle: section.member("idle", duration).unwrap_or(default.idle),
            total: section.member("total", duration).unwrap_or(default.total),
        };
        section.finish();
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_host() {
        for right in ["http://localhost:3000", "https://[::1]:8443/", "http://10.0.0.1", "h2c://a:50051"] {
            assert!(right.parse::<Upstream>().is_ok(), "{right}");
        }
        for wrong in ["", "localhost:3000", "ftp://a", "http://a/b", "http://a?b", "http://", "/a"] {
            assert!(matches!(wrong.parse::<Upstream>(), Err(UpstreamError::Url(_))), "{wrong}");
        }
        // It was repeated with its password, in the log and in `/status` too, and not told what is wrong with it.
        for wrong in ["http://u:p@a", "https://u@a:1"] {
            assert_eq!(wrong.parse::<Upstream>(), Err(UpstreamError::Userinfo));
        }
    }
}
