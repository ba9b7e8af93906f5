//! Where the store's tables are, and what it may cost.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use super::held::LOOK_LIMIT;
use super::queue::Waits;

/// How long a look waits for rows, to tell who holds them from who takes from them.
const WAITS_FOR_HELD: RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_millis(200);

/// How to reach PostgreSQL, and the bounds that hold there.
///
/// ```
/// use admit_store::postgres::PostgresConfig;
///
/// let mut config = PostgresConfig::new("postgres://app@db.internal/app?sslmode=require");
/// config.schema = "plexsphere".parse()?;
/// # Ok::<(), admit_store::postgres::SchemaNameError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct PostgresConfig {
    /// A connection URL or `key=value` string, as tokio-postgres reads it. `sslmode` is `disable`, `prefer` (the
    /// default: encrypted if the server can, without asking who it is) or `require` (the certificate must be valid).
    pub url: String,
    /// The schema of the tables. Default `admit`.
    pub schema: SchemaName,
    /// The most connections, apart from those of the application. Default 8: statements are short, and takes of one
    /// bucket wait for each other anyway.
    pub connections: usize,
    /// How long a call may wait for a free connection, and again for a new one to be made. Default 2 s.
    pub acquire_timeout: Duration,
    /// How long a statement may wait for the lock of a row. Default 1 s. Those behind it wait no longer than
    /// `acquire_timeout`, so that should be the longer one.
    pub lock_timeout: Duration,
    /// How long a statement may take, its waits included, before it is given up. Default 5 s.
    pub statement_timeout: Duration,
    /// The most takes and refunds that wait for the statement in flight, and the most admissions; more are unavailable. Default
    /// 16,384.
    pub queue: usize,
    /// The most takes and refunds that share a statement, and the most admissions, of which there are never more than 1,024.
    /// Default 4,096; with 1, none are shared.
    pub batch: usize,
    /// The most buckets that are remembered as too empty, so that refusing costs no statement; some 100 bytes each.
    /// Default 16,384; with 0, none are.
    pub refusals: usize,
    /// How long the migrations may wait: for another replica that migrates, and again for tables that are in use. Default
    /// 30 s.
    pub migration_lock_timeout: Duration,
    /// Whether to make and change the tables at the start. Default true; otherwise they must be as they should be.
    pub migrate: bool,
    /// TLS to use with `sslmode=require` instead of the system's root certificates.
    pub tls: Option<rustls::ClientConfig>,
}

impl PostgresConfig {
    /// The defaults, at `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            schema: SchemaName::default(),
            connections: 8,
            acquire_timeout: Duration::from_secs(2),
            lock_timeout: Duration::from_secs(1),
            statement_timeout: Duration::from_secs(5),
            queue: 16_384,
            batch: 4_096,
            refusals: 16_384,
            migration_lock_timeout: Duration::from_secs(30),
            migrate: true,
            tls: None,
        }
    }
}

/// A URL that PostgreSQL cannot be found by.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the PostgreSQL URL cannot be read: {0}")]
pub struct UrlError(String);

impl PostgresConfig {
    /// Whether the URL can be read, without connecting.
    ///
    /// # Errors
    /// [`UrlError`] if not. It repeats nothing of the URL, which may hold a password.
    pub fn check_url(&self) -> Result<(), UrlError> {
        let Err(error) = self.url.parse::<tokio_postgres::Config>() else { return Ok(()) };
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        // Of these messages alone it is known that they name an option of the driver, and nothing that was written.
        Err(UrlError(match cause.as_str() {
            cause if cause.contains("`sslmode`") && cause.starts_with("invalid value") => {
                "sslmode is disable, prefer or require, which asks for a certificate that is valid for the host".to_owned()
            }
            cause if cause.starts_with("invalid value") => cause.to_owned(),
            _ => "it has a parameter that there is not, or a sign in its user or password that has to be written with \
                  percent signs, as in %3F for ?"
                .to_owned(),
        }))
    }
}

impl PostgresConfig {
    /// How long the caller of a statement that is shared waits for it.
    pub(super) fn waits(&self) -> Waits {
        let statement = self.acquire_timeout + self.statement_timeout;
        Waits { to_begin: self.acquire_timeout, to_end: LOOK_LIMIT + statement }
    }

    /// How long a look waits for rows, once and perhaps twice. It comes after a statement that waited for one in vain, and before
    /// that is sent again; and others wait for all three, no longer than to begin. So it takes half of what is left, at most.
    pub(super) fn wait_for_held(&self) -> Duration {
        let left = self.acquire_timeout.saturating_sub(self.lock_timeout);
        (left / 4).clamp(*WAITS_FOR_HELD.start(), *WAITS_FOR_HELD.end())
    }
}

/// Without the URL, which may hold a password.
impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("schema", &self.schema)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

/// The name of a schema: 1 to 63 of `a`–`z`, `0`–`9` and `_`, not a digit first, so that it is the same with and without
/// quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaName(String);

/// A text that cannot name the store's schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot name the schema; use 1 to 63 of a-z, 0-9 and _, not a digit first, and not pg_ as the beginning"
)]
pub struct SchemaNameError(String);

impl SchemaName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as it stands in SQL.
    pub(super) fn quoted(&self) -> String {
        format!("\"{}\"", self.0) // Holds no quotes.
    }
}

/// `admit`.
impl Default for SchemaName {
    fn default() -> Self {
        Self("admit".to_owned())
    }
}

impl FromStr for SchemaName {
    type Err = SchemaNameError;

    fn from_str(name: &str) -> Result<Self, SchemaNameError> {
        let plain = name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
        let starts = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
        // Names that begin with pg_ are the server's.
        if plain && starts && name.len() <= 63 && !name.starts_with("pg_") {
            Ok(Self(name.to_owned()))
        } else {
            Err(SchemaNameError(name.to_owned()))
        }
    }
}

impl fmt::Display for SchemaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_needs_no_quotes() {
        for wrong in ["", "1a", "A", "a-b", "a\"b", "pg_x", "é", &"a".repeat(64)] {
            assert!(wrong.parse::<SchemaName>().is_err(), "{wrong}");
        }
        assert_eq!("plexsphere".parse::<SchemaName>().unwrap().quoted(), "\"plexsphere\"");
    }

    /// By the defaults a statement that met a held row took 2.2 s with its look, and those behind it gave up after two.
    #[test]
    fn a_held_row_leaves_those_behind_it_time() {
        let mut config = PostgresConfig::new("postgres://h/db");
        for lock_timeout in [100, 1_000, 1_900] {
            config.lock_timeout = Duration::from_millis(lock_timeout);
            let (waits, look) = (config.waits(), config.wait_for_held());
            assert!(config.lock_timeout + 2 * look < waits.to_begin, "{lock_timeout} ms and {look:?}");
            assert!(waits.to_end > config.acquire_timeout + config.statement_timeout, "a look comes first");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let config = PostgresConfig::new("postgres://u:hunter2@h/db");
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
