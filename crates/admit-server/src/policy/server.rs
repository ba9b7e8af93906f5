//! What the program itself is told: where it listens, where it keeps buckets, whom it trusts.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use admit::Retention;
use admit_listen::{Limits, TlsFiles};
use admit_store::postgres::PostgresConfig;
use admit_tower::Dialect;
use admit_tower::client_ip::{ForwardedField, IpNet, TrustedProxies};
use http::HeaderName;
use toml::de::DeValue;

use super::idempotency::duration;
use super::problems::{Problems, Span};
use super::section::{Section, Value, Wrong, list, one_of, parsed, plain, text};
use super::sources::KeySource;
use super::tls;
use super::upstream::Upstreams;
use super::{Decisions, Tokens};

/// The most clients that may be let in at once: each takes two sockets, and some tens of kilobytes.
const MAX_CONNECTIONS: usize = 100_000;

/// What the program itself is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Where the gateway, the decision API, forward-auth and gRPC are.
    pub listen: SocketAddr,
    /// Where metrics, health and administration are.
    pub admin: SocketAddr,
    /// The most clients of the main listener at once, as [`admit_listen::Limits::connections`].
    pub connections: usize,
    /// Where buckets and records are kept.
    pub store: StoreUrl,
    /// The service behind the gateway.
    pub upstream: Upstreams,
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
    /// What the decision service is told.
    pub decisions: Decisions,
    /// What the main listener is encrypted with; without it, it is not.
    pub tls: Option<TlsFiles>,
    /// What the admin listener is encrypted with; without it, it is not.
    pub admin_tls: Option<TlsFiles>,
    /// Who may change something at the admin listener; without any, nobody may.
    pub admin_tokens: Tokens,
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

/// A text that is no URL of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    /// None of the forms. The text is not repeated: it may hold a password.
    #[error("this is no store's URL")]
    Form,
    /// PostgreSQL cannot be found by it.
    #[error(transparent)]
    Postgres(#[from] admit_store::postgres::UrlError),
}

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
        if !known {
            return Err(StoreUrlError::Form);
        }
        if text.starts_with("postgres") {
            PostgresConfig::new(text).check_url()?;
        }
        Ok(Self(text.to_owned()))
    }
}

/// Without the user and the password, and without parameters.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_once("://") {
            Some((scheme, rest)) if scheme.starts_with("postgres") => {
                let (place, _) = rest.split_once('?').unwrap_or((rest, ""));
                match place.contains('@') || !rest.contains('@') {
                    true => write!(f, "{scheme}://{}", place.rsplit('@').next().unwrap_or_default()),
                    false => write!(f, "{scheme}://…"), // What is in front of the ? may be a part of the password.
                }
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

impl Server {
    /// Reads the members at the top of the file.
    pub(super) fn read<'a>(section: &mut Section<'a>, problems: &'a Problems) -> Self {
        let address = || plain::<SocketAddr>("an IP address and a port, as in \"127.0.0.1:8080\"");
        let listen = section.member("listen", address());
        let admin = section.member("admin", address());
        let connections = section.member("connections", connections);
        let store = section.member(
            "store",
            parsed("\"memory:\", \"sqlite:PATH\" or \"postgres://USER:PASSWORD@HOST/DATABASE\""),
        );
        let upstream = Upstreams::read(section, problems);
        let nets = section.member("trusted_proxies", |value| Ok(list(value, problems, net)));
        let fields =
            [("x-forwarded-for", ForwardedField::XForwardedFor), ("forwarded", ForwardedField::Forwarded)];
        let field = section.member("forwarded_by", one_of(&fields)).unwrap_or(ForwardedField::XForwardedFor);
        let dialects = [("draft-11", Dialect::Draft11), ("legacy", Dialect::Legacy), ("none", Dialect::None)];
        let dialect = section.member("headers", one_of(&dialects));
        let retention = section.member_or("retention", Retention::LONGEST, |value| {
            Retention::new(duration(value)?).map_err(|error| Wrong::new(value, error.to_string(), ""))
        });
        let keys = section.member_or("keys", KeysFrom::File(PathBuf::new()), |value| match text(value)? {
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
        let decisions = Decisions::read(section, problems);
        let [tls, admin_tls] =
            ["tls", "admin_tls"].map(|name| section.member(name, |value| tls::tls(name, value, problems)));
        let admin_tokens = section.member("admin_tokens", |value| Ok(Tokens::read(value, problems)));
        let default = Self::default();
        Self {
            listen: listen.unwrap_or(default.listen),
            admin: admin.unwrap_or(default.admin),
            connections: connections.unwrap_or(default.connections),
            store: store.unwrap_or(default.store),
            upstream,
            trusted: TrustedProxies::new(nets.unwrap_or_default(), field),
            dialect: dialect.unwrap_or_default(),
            retention: retention.unwrap_or(default.retention),
            keys,
            key_headers: key_headers.unwrap_or(default.key_headers),
            decisions,
            tls,
            admin_tls,
            admin_tokens: admin_tokens.unwrap_or_default(),
        }
    }
}

impl Server {
    /// Names the files of the transport from where the policy file is: its directory.
    pub fn beside(&mut self, directory: &Path) {
        for files in [&mut self.tls, &mut self.admin_tls].into_iter().flatten() {
            *files = files.beside(directory);
        }
        self.upstream.ca = self.upstream.ca.take().map(|file| directory.join(file));
    }

    /// The files of certificates and keys that it names.
    pub fn transport_files(&self) -> impl Iterator<Item = &Path> {
        let of_listeners = [&self.tls, &self.admin_tls].into_iter().flatten().flat_map(TlsFiles::all);
        of_listeners.chain(self.upstream.ca.as_deref())
    }

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
            connections: Limits::default().connections,
            store: StoreUrl("sqlite:admit.db".to_owned()),
            upstream: Upstreams::default(),
            trusted: TrustedProxies::none(),
            dialect: Dialect::default(),
            retention: Retention::DEFAULT,
            keys: None,
            key_headers: key_headers.to_vec(),
            decisions: Decisions::default(),
            tls: None,
            admin_tls: None,
            admin_tokens: Tokens::default(),
        }
    }
}

fn connections(value: Value<'_>) -> Result<usize, Wrong> {
    let DeValue::Integer(number) = value.get_ref() else {
        return Err(Wrong::kind(value, "a number of connections, as in 4096"));
    };
    let number = usize::from_str_radix(number.as_str(), number.radix()).ok();
    number
        .filter(|number| (1..=MAX_CONNECTIONS).contains(number))
        .ok_or_else(|| Wrong::new(value, "this many connections there cannot be", "write 1 to 100000"))
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
        // It was shown as postgres://u:s3, as if that were its host.
        let url: StoreUrl = "postgres://u:s3?cret@h/x".parse().unwrap();
        assert_eq!(url.to_string(), "postgres://…");
        for wrong in ["", "memory", "memory:x", "sqlite:", "sqlite://", "mysql://x", "postgres:x"] {
            assert_eq!(wrong.parse::<StoreUrl>(), Err(StoreUrlError::Form), "{wrong}");
        }
        // Told when the program starts, by the driver, in words that may hold a part of the password.
        for (wrong, told) in [
            ("postgres://h/x?sslmode=verify-full", "sslmode is disable, prefer or require"),
            ("postgres://h/x?s3cret=1", "percent signs"),
            ("postgres://h:port/x", "invalid value for option `port`"),
        ] {
            let error = wrong.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains(told) && !error.contains("cret"), "{error}");
        }
    }
}
