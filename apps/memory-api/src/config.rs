//! What the service is told at its start, all of it in `MEM_…` variables.
//!
//! [`Config::read`] is pure: it is given a way to look a variable up. Every bad value is named with what the variable
//! takes, all of them at once, and the service does not start.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tracing::Level;
use tracing_subscriber::filter::Targets;

use crate::keys::{ApiKeys, ApiKeysError};

/// One variable, as `--help` shows it.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The name of the variable.
    pub name: &'static str,
    /// The value when it is not set.
    pub default: &'static str,
    /// What it takes.
    pub takes: &'static str,
    /// What it is for.
    pub about: &'static str,
}

const LISTEN: Setting = Setting {
    name: "MEM_LISTEN",
    default: "127.0.0.1:8080",
    takes: "an IP address and a port, as in 127.0.0.1:8080 or [::1]:8080",
    about: "where the service listens",
};
const DATABASE_URL: Setting = Setting {
    name: "MEM_DATABASE_URL",
    default: "sqlite:memory.db",
    takes: "sqlite:PATH, or postgres://USER:PASSWORD@HOST:PORT/DATABASE",
    about: "where jobs, items, budgets and idempotency records are kept",
};
const API_KEYS: Setting = Setting {
    name: "MEM_API_KEYS",
    default: "on a loopback listener one development key, said in the log; elsewhere there is none",
    takes: "TENANT=KEY pairs with commas between them, as in acme=9f1c…,beta=77ad…",
    about: "who may call; a tenant may have several keys",
};
const LIMIT_TAKES: &str = "a whole number from 1 to 1000000000, or unlimited";
const INGEST: Setting = Setting {
    name: "MEM_RATE_LIMIT_INGEST",
    default: "100",
    takes: LIMIT_TAKES,
    about: "POST /memory/ingest requests an hour for each API key",
};
const QUERY: Setting = Setting {
    name: "MEM_RATE_LIMIT_QUERY",
    default: "1000",
    takes: LIMIT_TAKES,
    about: "GET /memory/query requests an hour for each API key",
};
const PROJECTS: Setting = Setting {
    name: "MEM_RATE_LIMIT_PROJECTS",
    default: "100",
    takes: LIMIT_TAKES,
    about: "GET /memory/projects requests an hour for each API key",
};
const SKILLS: Setting = Setting {
    name: "MEM_RATE_LIMIT_SKILLS",
    default: "unlimited",
    takes: LIMIT_TAKES,
    about: "GET /memory/skills requests an hour for each API key",
};
const BURST: Setting = Setting {
    name: "MEM_RATE_LIMIT_BURST",
    default: "10",
    takes: "a whole number from 1 to 1000000",
    about: "requests a second for each API key and endpoint, whatever is left of the hour",
};
const IDEMPOTENCY_TTL: Setting = Setting {
    name: "MEM_IDEMPOTENCY_TTL_SECS",
    default: "86400",
    takes: "a whole number of seconds from 1 to 31536000",
    about: "how long a batch that is sent again gets the first answer",
};
const IDEMPOTENCY_LEASE: Setting = Setting {
    name: "MEM_IDEMPOTENCY_LEASE_SECS",
    default: "10",
    takes: "a whole number of seconds from 1 to 3600",
    about: "after how long a batch may be sent again whose process died while it was taken in",
};
const JOB_LEASE: Setting = Setting {
    name: "MEM_JOB_LEASE_SECS",
    default: "30",
    takes: "a whole number of seconds from 1 to 3600",
    about: "after how long another worker takes over the job of one that died",
};
const LOG_FORMAT: Setting = Setting {
    name: "MEM_LOG_FORMAT",
    default: "text on a terminal, json elsewhere",
    takes: "text or json",
    about: "how log lines are written",
};
const LOG: Setting = Setting {
    name: "MEM_LOG",
    default: "info",
    takes: "a tracing filter, as in info or memory_api=debug, or off",
    about: "which log lines are written",
};

/// All variables.
pub const SETTINGS: [Setting; 13] = [
    LISTEN,
    DATABASE_URL,
    API_KEYS,
    INGEST,
    QUERY,
    PROJECTS,
    SKILLS,
    BURST,
    IDEMPOTENCY_TTL,
    IDEMPOTENCY_LEASE,
    JOB_LEASE,
    LOG_FORMAT,
    LOG,
];

/// What the service runs with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where to keep everything.
    pub database: DatabaseUrl,
    /// Who may call.
    pub api_keys: ApiKeys,
    /// Whether `api_keys` is the development key.
    pub uses_development_key: bool,
    /// How much each API key may call.
    pub limits: LimitSettings,
    /// How long an ingest is replayed.
    pub idempotency_ttl: Duration,
    /// How long an ingest holds its id without a sign of life.
    pub idempotency_lease: Duration,
    /// How long a worker holds a job.
    pub job_lease: Duration,
    /// How log lines are written; nothing to decide by what standard error is.
    pub log_format: Option<LogFormat>,
    /// Which log lines are written.
    pub log_filter: String,
}

/// Requests an hour by endpoint, none for no limit, and requests a second for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSettings {
    /// `POST /memory/ingest`, an hour.
    pub ingest: Option<u32>,
    /// `GET /memory/query`, an hour.
    pub query: Option<u32>,
    /// `GET /memory/projects`, an hour.
    pub projects: Option<u32>,
    /// `GET /memory/skills`, an hour.
    pub skills: Option<u32>,
    /// Each endpoint, a second.
    pub burst: u32,
}

/// Which store, and where.
#[derive(Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    /// A file.
    Sqlite(std::path::PathBuf),
    /// A server.
    Postgres(String),
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs, an object a line.
    Json,
}

/// Every variable whose value is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(Vec<ConfigError>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct ConfigError {
    setting: &'static str,
    takes: &'static str,
    problem: String,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}{}: {}; it takes {}", error.setting, error.problem, error.takes)?;
        }
        Ok(())
    }
}

/// Collects what is wrong, so that one start tells all of it.
struct Reader<'a> {
    look_up: &'a dyn Fn(&str) -> Option<String>,
    errors: Vec<ConfigError>,
}

impl Reader<'_> {
    fn read<T>(&mut self, setting: Setting, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let value = (self.look_up)(setting.name)?;
        if value.contains(char::REPLACEMENT_CHARACTER) {
            self.wrong(setting, "not UTF-8".to_owned());
            return None;
        }
        parse(value.trim()).map_err(|problem| self.wrong(setting, problem)).ok()
    }

    fn wrong(&mut self, setting: Setting, problem: String) {
        self.errors.push(ConfigError { setting: setting.name, takes: setting.takes, problem });
    }

    fn limit(&mut self, setting: Setting, default: Option<u32>) -> Option<u32> {
        let parse = |text: &str| match text {
            "unlimited" => Ok(None),
            number => whole_number(number, 1, 1_000_000_000).map(|n| Some(n as u32)), // Checked to fit.
        };
        self.read(setting, parse).unwrap_or(default)
    }

    fn seconds(&mut self, setting: Setting, default: u64, most: u64) -> Duration {
        let read = self.read(setting, |text| whole_number(text, 1, most));
        Duration::from_secs(read.unwrap_or(default))
    }
}

/// The value in the message is cut, and shown only for settings that hold no secret.
fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(40).collect();
    format!("{shown:?}{}", if shown.len() < text.len() { "…" } else { "" })
}

fn whole_number(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = digits.then(|| text.parse::<u64>().ok()).flatten();
    number
        .filter(|n| (least..=most).contains(n))
        .ok_or_else(|| format!("{} is not a whole number in range", quoted(text)))
}

impl Config {
    /// Reads every setting through `look_up`, which puts U+FFFD in the place of what is not UTF-8.
    ///
    /// # Errors
    /// [`ConfigErrors`] with every bad value, with every one that holds U+FFFD, and for a listener that others can reach with no keys set.
    pub fn read(look_up: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigErrors> {
        let mut reader = Reader { look_up, errors: Vec::new() };

        let loopback = SocketAddr::from(([127, 0, 0, 1], 8080));
        let listen = reader.read(LISTEN, |text| {
            text.parse().map_err(|_| format!("{} is not an IP address and a port", quoted(text)))
        });
        let listen: SocketAddr = listen.unwrap_or(loopback);
        let database = reader.read(DATABASE_URL, DatabaseUrl::parse);
        let keys =
            reader.read(API_KEYS, |text| ApiKeys::parse(text).map_err(|e: ApiKeysError| e.to_string()));
        let uses_development_key = look_up(API_KEYS.name).is_none();
        if uses_development_key && !listen.ip().is_loopback() {
            let problem = format!("not set, and {listen} is not a loopback address");
            reader.wrong(API_KEYS, problem);
        }
        let limits = LimitSettings {
            ingest: reader.limit(INGEST, Some(100)),
            query: reader.limit(QUERY, Some(1_000)),
            projects: reader.limit(PROJECTS, Some(100)),
            skills: reader.limit(SKILLS, None),
            burst: reader
                .read(BURST, |text| whole_number(text, 1, 1_000_000))
                .map_or(10, |burst| burst as u32), // Checked to fit.
        };
        let idempotency_ttl = reader.seconds(IDEMPOTENCY_TTL, 86_400, 31_536_000);
        let idempotency_lease = reader.seconds(IDEMPOTENCY_LEASE, 10, 3_600);
        let job_lease = reader.seconds(JOB_LEASE, 30, 3_600);
        let log_format = reader.read(LOG_FORMAT, |text| match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            other => Err(format!("{} is not a log format", quoted(other))),
        });
        let log_filter = reader.read(LOG, |text| match text.parse::<Targets>() {
            Ok(_) if text == "off" => Ok(text.to_owned()),
            Ok(_) if text.split(',').any(|directive| directive.trim().is_empty()) => {
                Err(format!("{} has an empty part", quoted(text))) // Would be taken for `error`.
            }
            // A misspelt level is the name of a target.
            Ok(filter) if !filter.would_enable(env!("CARGO_CRATE_NAME"), &Level::ERROR) => {
                Err(format!("{} logs not even this service's errors, as off would say", quoted(text)))
            }
            Ok(_) => Ok(text.to_owned()),
            Err(_) => Err(format!("{} is not a filter", quoted(text))),
        });

        if !reader.errors.is_empty() {
            return Err(ConfigErrors(reader.errors));
        }
        Ok(Self {
            listen,
            database: database.unwrap_or_else(|| DatabaseUrl::Sqlite("memory.db".into())),
            api_keys: keys.unwrap_or_else(ApiKeys::development),
            uses_development_key,
            limits,
            idempotency_ttl,
            idempotency_lease,
            job_lease,
            log_format,
            log_filter: log_filter.unwrap_or_else(|| LOG.default.to_owned()),
        })
    }

    /// Reads the environment of the process.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn from_environment() -> Result<Self, ConfigErrors> {
        Self::read(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }
}

impl DatabaseUrl {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err("the path behind sqlite: is missing".into()),
                ":memory:" => Err("a database in memory would be lost with the process".into()),
                path => Ok(Self::Sqlite(path.into())),
            };
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            // The parser's message is kept out: it may quote the password.
            return match text.parse::<tokio_postgres::Config>() {
                Ok(_) => Ok(Self::Postgres(text.to_owned())),
                Err(_) => Err("the PostgreSQL URL is malformed".into()),
            };
        }
        Err("the URL starts with neither sqlite: nor postgres://".into())
    }
}

/// Never shows a password.
impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(_) => f.write_str("postgres"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, String> {
        let look_up = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Config::read(&look_up).map_err(|errors| errors.to_string())
    }

    #[test]
    fn with_nothing_set_it_just_works() {
        let config = read(&[]).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.database, DatabaseUrl::Sqlite("memory.db".into()));
        assert!(config.uses_development_key && config.api_keys.count() == 1);
        let documented = LimitSettings {
            ingest: Some(100),
            query: Some(1_000),
            projects: Some(100),
            skills: None,
            burst: 10,
        };
        assert_eq!(config.limits, documented);
        assert_eq!(config.idempotency_ttl, Duration::from_secs(86_400));
    }

    #[test]
    fn every_setting_is_read() {
        let config = read(&[
            ("MEM_LISTEN", "0.0.0.0:80"),
            ("MEM_DATABASE_URL", "postgres://u:p@h/d"),
            ("MEM_API_KEYS", "a=b"),
            ("MEM_RATE_LIMIT_INGEST", "1"),
            ("MEM_RATE_LIMIT_QUERY", "unlimited"),
            ("MEM_RATE_LIMIT_PROJECTS", "3"),
            ("MEM_RATE_LIMIT_SKILLS", "4"),
            ("MEM_RATE_LIMIT_BURST", "5"),
            ("MEM_IDEMPOTENCY_TTL_SECS", "6"),
            ("MEM_JOB_LEASE_SECS", "7"),
            ("MEM_LOG_FORMAT", "json"),
            ("MEM_LOG", "memory_api=debug"),
        ])
        .unwrap();
        let set =
            LimitSettings { ingest: Some(1), query: None, projects: Some(3), skills: Some(4), burst: 5 };
        assert_eq!(config.limits, set);
        assert_eq!(config.idempotency_ttl, Duration::from_secs(6));
        assert_eq!(config.job_lease, Duration::from_secs(7));
        assert_eq!(config.log_format, Some(LogFormat::Json));
        assert_eq!(config.log_filter, "memory_api=debug");
        assert!(!format!("{config:?}").contains("u:p"));
    }

    /// Of `sqlite:` and a path that is not UTF-8, a file of another name was made; a filter with a misspelt level, or a
    /// comma at its end, silenced the log.
    #[test]
    fn what_would_quietly_mean_something_else_is_refused() {
        for (name, value) in [
            ("MEM_DATABASE_URL", "sqlite:\u{fffd}.db"),
            ("MEM_DATABASE_URL", "postgres://u:\u{fffd}@h/d"),
            ("MEM_LOG", "admit\u{fffd},info"),
            ("MEM_LOG", ""),
            ("MEM_LOG", "wran"),
            ("MEM_LOG", "info,"),
            ("MEM_LOG", "admit_store=debug"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(name) && error.contains("it takes"), "{value}: {error}");
        }
        for filter in
            ["off", "error", "warn,memory_api=debug", "memory_api", "memory_api=warn,admit_store=trace"]
        {
            assert_eq!(read(&[("MEM_LOG", filter)]).unwrap().log_filter, filter);
        }
    }

    #[test]
    fn all_bad_values_are_named_at_once_with_what_they_take() {
        let error = read(&[
            ("MEM_RATE_LIMIT_INGEST", "0"),
            ("MEM_RATE_LIMIT_QUERY", "-1"),
            ("MEM_RATE_LIMIT_BURST", "ten"),
            ("MEM_IDEMPOTENCY_TTL_SECS", "1e3"),
            ("MEM_LISTEN", "localhost"),
            ("MEM_DATABASE_URL", "mysql://root:secret@h"),
            ("MEM_API_KEYS", "secret"),
            ("MEM_LOG_FORMAT", "xml"),
        ])
        .unwrap_err();
        assert_eq!(error.lines().count(), 8, "{error}");
        assert!(error.contains(
            "MEM_RATE_LIMIT_BURST: \"ten\" is not a whole number in range; it takes a whole number from 1 to 1000000"
        ));
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn a_listener_that_others_reach_needs_keys() {
        let error = read(&[("MEM_LISTEN", "0.0.0.0:8080")]).unwrap_err();
        assert!(
            error.starts_with("MEM_API_KEYS: not set, and 0.0.0.0:8080 is not a loopback address; it takes")
        );
        assert!(read(&[("MEM_LISTEN", "[::1]:0")]).is_ok());
    }
}
