//! What the program itself is told: where it listens, where it keeps buckets, whom it trusts.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use admit::Retention;
use admit_tower::Dialect;
use admit_tower::client_ip::{ForwardedField, IpNet, TrustedProxies};
use http::{HeaderName, Uri};

use super::digest::sha256;
use super::idempotency::duration;
use super::problems::{Problems, Span};
use super::section::{Section, Value, Wrong, list, one_of, parsed, plain, text};
use super::sources::KeySource;

/// What the program itself is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Where the gateway, the decision API, forward-auth and gRPC are.
    pub listen: SocketAddr,
    /// Where metrics, health and administration are.
    pub admin: SocketAddr,
    /// Where buckets and records are kept.
    pub store: StoreUrl,
    /// The service behind the gateway; without it there is none.
    pub upstream: Option<Upstream>,
    /// The proxies whose word is taken for who their peer is.
    pub trusted: TrustedProxies,
    /// The fields that tell a client its limits.
    pub dialect: Dialect,
    /// How long an idle bucket is kept.
    pub retention: Retention,
    /// Where API keys are; without it no key is known.
    pub keys: Option<KeysFrom>,
    /// The headers that carry an API key, in the order in which they are looked at.
    pub key_headers: Vec<HeaderName>,
    /// The SHA-256 of the tokens that may change something at the admin listener; without any, nobody may.
    pub admin_tokens: Vec<[u8; 32]>,
}

/// Where API keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeysFrom {
    /// In a file, beside the policy's own.
    File(PathBuf),
    /// In the store.
    Store,
}

/// The URL of a store. It may hold a password, so it is shown without.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

/// The URL of an upstream: `http://` or `https://`, a host, and no path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream(pub Uri);

/// A text that is no URL of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no store's URL")]
pub struct StoreUrlError;

/// A text that is no URL of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no upstream's URL")]
pub struct UpstreamError(String);

impl StoreUrl {
    /// The whole URL.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let known = match text.split_once(':') {
            Some(("memory", rest)) => rest.is_empty(),
            Some(("sqlite", rest)) => !rest.trim_start_matches('/').is_empty(),
            Some(("postgres" | "postgresql", rest)) => rest.starts_with("//"),
            _ => false,
        };
        if known { Ok(Self(text.to_owned())) } else { Err(StoreUrlError) }
    }
}

/// Without the user and the password, and without parameters.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_once("://") {
            Some((scheme, rest)) if scheme.starts_with("postgres") => {
                let rest = rest.split('?').next().unwrap_or_default();
                write!(f, "{scheme}://{}", rest.rsplit('@').next().unwrap_or_default())
            }
            _ => f.write_str(&self.0),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

impl FromStr for Upstream {
    type Err = UpstreamError;

    fn from_str(text: &str) -> Result<Self, UpstreamError> {
        let uri: Option<Uri> = text.parse().ok();
        let fits = |uri: &Uri| {
            matches!(uri.scheme_str(), Some("http" | "https"))
                && uri.host().is_some()
                && uri.path() == "/"
                && uri.query().is_none()
        };
        uri.filter(fits).map(Self).ok_or_else(|| UpstreamError(text.to_owned()))
    }
}

impl Server {
    /// Reads the members at the top of the file.
    pub(super) fn read(section: &mut Section<'_>, problems: &Problems) -> Self {
        let address = || plain::<SocketAddr>("an IP address and a port, as in \"127.0.0.1:8080\"");
        let listen = section.member("listen", address());
        let admin = section.member("admin", address());
        let store = section.member(
            "store",
            parsed("\"memory:\", \"sqlite:PATH\" or \"postgres://USER:PASSWORD@HOST/DATABASE\""),
        );
        let upstream =
            section.member("upstream", parsed("a URL without a path, as in \"http://localhost:3000\""));
        let nets = section.member("trusted_proxies", |value| Ok(list(value, problems, net)));
        let fields =
            [("x-forwarded-for", ForwardedField::XForwardedFor), ("forwarded", ForwardedField::Forwarded)];
        let field = section.member("forwarded_by", one_of(&fields)).unwrap_or(ForwardedField::XForwardedFor);
        let dialects = [("draft-11", Dialect::Draft11), ("legacy", Dialect::Legacy), ("none", Dialect::None)];
        let dialect = section.member("headers", one_of(&dialects));
        let retention = section.member("retention", |value| {
            Retention::new(duration(value)?).map_err(|error| Wrong::new(value, error.to_string(), ""))
        });
        let keys = section.member("keys", |value| match text(value)? {
            "" => Err(Wrong::new(value, "this names no file", "write the name of a file, or \"store\"")),
            "store" => Ok(KeysFrom::Store),
            file => Ok(KeysFrom::File(file.into())),
        });
        if keys == Some(KeysFrom::Store)
            && store.as_ref().is_some_and(|store: &StoreUrl| store.0 == "memory:")
        {
            let message = "a store in memory keeps no API keys";
            let help = "keep them in a file, as in keys = \"keys.toml\", or use sqlite: or postgres://";
            problems.add(section.span_of("keys"), message, help);
        }
        let key_headers = section.member("key_headers", |value| {
            Ok(list(value, problems, plain("a header's name, as in \"x-api-key\"")))
        });
        let admin_tokens = section.member("admin_tokens", |value| Ok(list(value, problems, sha256)));
        let default = Self::default();
        Self {
            listen: listen.unwrap_or(default.listen),
            admin: admin.unwrap_or(default.admin),
            store: store.unwrap_or(default.store),
            upstream,
            trusted: TrustedProxies::new(nets.unwrap_or_default(), field),
            dialect: dialect.unwrap_or_default(),
            retention: retention.unwrap_or(default.retention),
            keys,
            key_headers: key_headers.unwrap_or(default.key_headers),
            admin_tokens: admin_tokens.unwrap_or_default(),
        }
    }
}

impl Server {
    /// What is kept by API keys needs some that are known.
    pub(super) fn check_identity(&self, source: &KeySource, what: &str, span: &Span, problems: &Problems) {
        if self.keys.is_none() && source.asks_for_identity() {
            let message = format!("{what} is kept by {source}, and no API key is known");
            problems.add(
                span.clone(),
                message,
                "write keys = \"keys.toml\" or keys = \"store\" at the top of the file",
            );
        }
    }
}

impl Default for Server {
    fn default() -> Self {
        let key_headers = ["x-api-key", "apikey", "authorization"].map(HeaderName::from_static);
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            admin: SocketAddr::from(([127, 0, 0, 1], 8082)),
            store: StoreUrl("sqlite:admit.db".to_owned()),
            upstream: None,
            trusted: TrustedProxies::none(),
            dialect: Dialect::default(),
            retention: Retention::DEFAULT,
            keys: None,
            key_headers: key_headers.to_vec(),
            admin_tokens: Vec::new(),
        }
    }
}

/// A net, or an address alone.
fn net(value: Value<'_>) -> Result<IpNet, Wrong> {
    let wanted = "an address or a net, as in \"10.0.0.7\" or \"10.0.0.0/8\"";
    plain::<std::net::IpAddr>(wanted)(value).map(IpNet::from).or_else(|_| plain(wanted)(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stores_url_is_shown_without_its_password() {
        let url: StoreUrl =
            "postgres://admit:s3cret@db.internal/app?sslmode=require&password=s3cret".parse().unwrap();
        assert_eq!(
            format!("{url} {url:?}"),
            "postgres://db.internal/app StoreUrl(postgres://db.internal/app)"
        );
        for wrong in ["", "memory", "memory:x", "sqlite:", "sqlite://", "mysql://x", "postgres:x"] {
            assert_eq!(wrong.parse::<StoreUrl>(), Err(StoreUrlError), "{wrong}");
        }
    }

    #[test]
    fn an_upstream_is_a_host() {
        for right in ["http://localhost:3000", "https://[::1]:8443/", "http://10.0.0.1"] {
            assert!(right.parse::<Upstream>().is_ok(), "{right}");
        }
        for wrong in ["", "localhost:3000", "ftp://a", "http://a/b", "http://a?b", "http://", "/a"] {
            assert!(wrong.parse::<Upstream>().is_err(), "{wrong}");
        }
    }
}
