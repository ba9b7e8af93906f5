//! The `FLEET_…` variables, read once at the start.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use admit::Budget;
use tracing::Level;
use tracing_subscriber::filter::{ParseError, Targets};

/// Everything that is set from outside, except the fleet itself.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The store: `sqlite:PATH` or `postgres://…`.
    pub database_url: DatabaseUrl,
    /// The file that describes the fleet.
    pub file: PathBuf,
    /// What secret reads are held to.
    pub reads: ReadBudgets,
    /// What session issuance is held to in a domain without a policy of its own.
    pub issuance: Budget,
    /// What ingest is held to.
    pub ingest: IngestBudgets,
    /// Bounds of ingest.
    pub ingest_limits: IngestLimits,
    /// Where accepted telemetry is written.
    pub ingest_file: PathBuf,
    /// How large that file may grow before it becomes the previous one, in bytes.
    pub ingest_file_max_bytes: u64,
    /// What is logged.
    pub log: Targets,
}

/// The budgets of secret reads, in reads.
#[derive(Clone, Copy, Debug)]
pub struct ReadBudgets {
    /// Each node's.
    pub node: Budget,
    /// Each domain's.
    pub domain: Budget,
}

/// The budgets of ingest, in bytes as they come over the wire.
#[derive(Clone, Copy, Debug)]
pub struct IngestBudgets {
    /// Each node's.
    pub node: Budget,
    /// Each domain's.
    pub domain: Budget,
}

/// The bounds of one batch, and of all batches that wait to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IngestLimits {
    /// The largest body as it comes over the wire, in bytes.
    pub max_body_bytes: usize,
    /// The largest body after it is inflated, in bytes.
    pub max_inflated_bytes: usize,
    /// The most records of one batch.
    pub max_records: usize,
    /// The most records that wait to be written.
    pub max_buffered_records: usize,
    /// The most bytes that wait to be written.
    pub max_buffered_bytes: usize,
}

impl Default for IngestLimits {
    fn default() -> Self {
        Self {
            max_body_bytes: 1 << 20,
            max_inflated_bytes: 8 << 20,
            max_records: 10_000,
            max_buffered_records: 100_000,
            max_buffered_bytes: 64 << 20,
        }
    }
}

/// The address of a store. Its `Debug` form shows no password.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// The whole address.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.0.split(':').next().unwrap_or_default();
        write!(f, "{kind}:…")
    }
}

/// One variable, for the list that `--help` prints.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub takes: &'static str,
    /// What it is when unset; nothing if it must be set.
    pub default: Option<&'static str>,
    /// What it is for.
    pub what: &'static str,
}

const BUDGET: &str = "a budget as in \"256KiB/second burst 1MiB\"";

/// All variables.
pub const VARIABLES: [Variable; 13] = [
    Variable {
        name: "FLEET_FILE",
        takes: "a path",
        default: None,
        what: "the TOML file that describes the fleet",
    },
    Variable {
        name: "FLEET_LISTEN",
        takes: "an address and port as in \"127.0.0.1:8090\"",
        default: Some("127.0.0.1:8090"),
        what: "where to listen",
    },
    Variable {
        name: "FLEET_DATABASE_URL",
        takes: "\"sqlite:PATH\" or \"postgres://USER:PASSWORD@HOST/DATABASE\"",
        default: Some("sqlite:fleet.db"),
        what: "where budgets and sessions are kept; in PostgreSQL in the schema plexsphere",
    },
    Variable {
        name: "FLEET_SECRET_READ_NODE_BUDGET",
        takes: BUDGET,
        default: Some("5/second burst 10"),
        what: "secret reads of one node",
    },
    Variable {
        name: "FLEET_SECRET_READ_DOMAIN_BUDGET",
        takes: BUDGET,
        default: Some("50/second burst 100"),
        what: "secret reads of all nodes of one domain",
    },
    Variable {
        name: "FLEET_ACCESS_ISSUANCE_DOMAIN_BUDGET",
        takes: BUDGET,
        default: Some("2/second burst 10"),
        what: "sessions issued in one domain that has no issuance policy of its own",
    },
    Variable {
        name: "FLEET_INGEST_NODE_BUDGET",
        takes: BUDGET,
        default: Some("256KiB/second burst 1MiB"),
        what: "ingest of one node, in bytes on the wire; the burst covers FLEET_INGEST_MAX_BODY_BYTES",
    },
    Variable {
        name: "FLEET_INGEST_DOMAIN_BUDGET",
        takes: BUDGET,
        default: Some("4MiB/second burst 16MiB"),
        what: "ingest of all nodes of one domain, in bytes on the wire; the burst covers FLEET_INGEST_MAX_BODY_BYTES",
    },
    Variable {
        name: "FLEET_INGEST_MAX_BODY_BYTES",
        takes: "a whole number of bytes from 1 to 67108864",
        default: Some("1048576"),
        what: "the largest ingest body on the wire; inflated it may be eight times as large",
    },
    Variable {
        name: "FLEET_INGEST_BUFFER_BYTES",
        takes: "a whole number of bytes from 1048576 to 4294967295",
        default: Some("67108864"),
        what: "the most telemetry that waits to be written; beyond it batches are answered 503",
    },
    Variable {
        name: "FLEET_INGEST_FILE",
        takes: "a path",
        default: Some("fleet-ingest.ndjson"),
        what: "where accepted telemetry is appended, a JSON object a line",
    },
    Variable {
        name: "FLEET_INGEST_FILE_MAX_BYTES",
        takes: "a whole number of bytes from 1048576",
        default: Some("268435456"),
        what: "when it is that large the file is renamed to *.1, replacing the one before, and begun anew",
    },
    Variable {
        name: "FLEET_LOG",
        takes: "a filter as in \"info\" or \"fleet_api=debug\", or \"off\"",
        default: Some("info"),
        what: "what is logged, as JSON lines on standard error",
    },
];

/// A variable that stops the start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// It must be set.
    #[error("{name} is not set; it takes {takes}")]
    Missing {
        /// The variable.
        name: &'static str,
        /// What it takes.
        takes: &'static str,
    },
    /// It cannot be read.
    #[error("{name} is {value:?}, which it does not take: {why}. It takes {takes}")]
    Wrong {
        /// The variable.
        name: &'static str,
        /// Its value, unless it may hold a password.
        value: String,
        /// What is wrong with it.
        why: String,
        /// What it takes.
        takes: &'static str,
    },
}

impl Settings {
    /// Reads the variables through `lookup`, which puts U+FFFD in the place of what is not UTF-8.
    ///
    /// # Errors
    /// [`SettingsError`] for the first variable that is wrong or holds U+FFFD.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let read = Reader(lookup);
        let max_body_bytes = read.bytes("FLEET_INGEST_MAX_BODY_BYTES", 1..=1 << 26)? as usize;
        let max_buffered_bytes = read.bytes("FLEET_INGEST_BUFFER_BYTES", 1 << 20..=u32::MAX.into())? as usize;
        let body = max_body_bytes as f64;
        Ok(Self {
            listen: read.parsed("FLEET_LISTEN")?,
            database_url: read.parsed("FLEET_DATABASE_URL")?,
            file: read.text("FLEET_FILE")?.into(),
            reads: ReadBudgets {
                node: read.budget("FLEET_SECRET_READ_NODE_BUDGET", 1.0)?,
                domain: read.budget("FLEET_SECRET_READ_DOMAIN_BUDGET", 1.0)?,
            },
            issuance: read.budget("FLEET_ACCESS_ISSUANCE_DOMAIN_BUDGET", 1.0)?,
            ingest: IngestBudgets {
                node: read.budget("FLEET_INGEST_NODE_BUDGET", body)?,
                domain: read.budget("FLEET_INGEST_DOMAIN_BUDGET", body)?,
            },
            ingest_limits: IngestLimits {
                max_body_bytes,
                max_inflated_bytes: max_body_bytes.saturating_mul(8),
                max_buffered_bytes,
                ..IngestLimits::default()
            },
            ingest_file: read.text("FLEET_INGEST_FILE")?.into(),
            ingest_file_max_bytes: read.bytes("FLEET_INGEST_FILE_MAX_BYTES", 1 << 20..=u64::MAX)?,
            log: read.parsed::<Filter>("FLEET_LOG")?.0,
        })
    }
}

struct Reader<F>(F);

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    fn text(&self, name: &str) -> Result<String, SettingsError> {
        let variable = variable(name);
        let set = (self.0)(name).or_else(|| variable.default.map(ToOwned::to_owned));
        let value = set.ok_or(SettingsError::Missing { name: variable.name, takes: variable.takes })?;
        if value.contains(char::REPLACEMENT_CHARACTER) {
            return Err(wrong(name, "…", "it is not UTF-8"));
        }
        if value.trim().is_empty() { Err(wrong(name, value, "it is empty")) } else { Ok(value) }
    }

    fn parsed<T: FromStr>(&self, name: &str) -> Result<T, SettingsError>
    where
        T::Err: fmt::Display,
    {
        let value = self.text(name)?;
        value.trim().parse().map_err(|error: T::Err| {
            let shown = if name == "FLEET_DATABASE_URL" { "…".to_owned() } else { value.clone() };
            wrong(name, shown, error.to_string())
        })
    }

    fn bytes(&self, name: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, SettingsError> {
        let bytes = self.parsed(name)?;
        let why = || format!("it is not between {} and {}", range.start(), range.end());
        if range.contains(&bytes) { Ok(bytes) } else { Err(wrong(name, bytes.to_string(), why())) }
    }

    /// A budget that can grant the largest single cost; one that cannot would refuse such requests for ever.
    fn budget(&self, name: &str, largest_cost: f64) -> Result<Budget, SettingsError> {
        let budget: Budget = self.parsed(name)?;
        let refuse = |why: String| Err(wrong(name, budget.to_string(), why));
        if budget.burst().tokens() < largest_cost {
            return refuse(format!(
                "its burst must be at least {largest_cost}, the most that one request costs"
            ));
        }
        if !crate::scopes::RETENTION.allows(budget) {
            let (needed, kept) = (budget.time_to_fill(), crate::scopes::RETENTION.duration());
            return refuse(format!(
                "an empty bucket takes {needed:?} to fill, and idle ones are kept for {kept:?}"
            ));
        }
        Ok(budget)
    }
}

fn variable(name: &str) -> Variable {
    let unknown = Variable { name: "FLEET_?", takes: "", default: None, what: "" };
    VARIABLES.into_iter().find(|variable| variable.name == name).unwrap_or(unknown)
}

fn wrong(name: &str, value: impl Into<String>, why: impl Into<String>) -> SettingsError {
    let Variable { name, takes, .. } = variable(name);
    SettingsError::Wrong { name, value: value.into(), why: why.into(), takes }
}

struct Filter(Targets);

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let filter: Targets = text.parse().map_err(|error: ParseError| error.to_string())?;
        if text.split(',').any(|directive| directive.trim().is_empty()) {
            return Err("a part of it is empty".to_owned()); // Would be taken for `error`.
        }
        // A misspelt level is the name of a target.
        if text == "off" || filter.would_enable(env!("CARGO_CRATE_NAME"), &Level::ERROR) {
            return Ok(Self(filter));
        }
        Err("it logs not even this service's errors, as off would say".to_owned())
    }
}

impl FromStr for DatabaseUrl {
    type Err = &'static str;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let known = ["sqlite:", "postgres://", "postgresql://"].iter().any(|kind| url.starts_with(kind));
        if known { Ok(Self(url.to_owned())) } else { Err("it names no kind of store") }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let find =
            |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        Settings::read(|name| find(name).or_else(|| (name == "FLEET_FILE").then(|| "fleet.toml".to_owned())))
    }

    #[test]
    fn the_shipped_budgets_are_full_again_in_five_two_and_four_seconds() {
        let settings = read(&[]).unwrap();
        let seconds = |budget: Budget| budget.time_to_fill();
        assert_eq!(seconds(settings.issuance), Duration::from_secs(5));
        assert_eq!([settings.reads.node, settings.reads.domain].map(seconds), [Duration::from_secs(2); 2]);
        assert_eq!([settings.ingest.node, settings.ingest.domain].map(seconds), [Duration::from_secs(4); 2]);
    }

    #[test]
    fn a_wrong_variable_is_named_with_what_it_takes() {
        for (name, value) in [
            ("FLEET_LISTEN", "8090"),
            ("FLEET_DATABASE_URL", "mysql://root:hunter2@db"),
            ("FLEET_FILE", " "),
            ("FLEET_SECRET_READ_NODE_BUDGET", "five"),
            ("FLEET_SECRET_READ_DOMAIN_BUDGET", "1/second burst 0.5"),
            ("FLEET_ACCESS_ISSUANCE_DOMAIN_BUDGET", "100/day"),
            ("FLEET_INGEST_NODE_BUDGET", "1KiB/second"),
            ("FLEET_INGEST_DOMAIN_BUDGET", "-1/s"),
            ("FLEET_INGEST_MAX_BODY_BYTES", "0"),
            ("FLEET_INGEST_BUFFER_BYTES", "1MiB"),
            ("FLEET_INGEST_FILE", ""),
            ("FLEET_INGEST_FILE_MAX_BYTES", "1"),
            ("FLEET_LOG", "fleet_api=loud"),
            // These two silenced the log, as a misspelt level is the name of a target.
            ("FLEET_LOG", "wran"),
            ("FLEET_LOG", "info,"),
            // These would have been files of another name.
            ("FLEET_FILE", "\u{fffd}.toml"),
            ("FLEET_INGEST_FILE", "\u{fffd}.ndjson"),
            ("FLEET_DATABASE_URL", "sqlite:\u{fffd}.db"),
        ] {
            let error = read(&[(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains("takes "), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!(Settings::read(|_| None).unwrap_err().to_string().starts_with("FLEET_FILE is not set"));
    }

    #[test]
    fn a_body_cap_and_budgets_that_cover_it_go_together() {
        let cap = ("FLEET_INGEST_MAX_BODY_BYTES", "100");
        let settings = read(&[cap, ("FLEET_INGEST_NODE_BUDGET", "100B/second")]).unwrap();
        assert_eq!(settings.ingest_limits.max_inflated_bytes, 800);
    }

    #[test]
    fn every_variable_is_documented_once() {
        for variable in VARIABLES {
            assert_eq!(VARIABLES.iter().filter(|other| other.name == variable.name).count(), 1);
        }
    }
}
