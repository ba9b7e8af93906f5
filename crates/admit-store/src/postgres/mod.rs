//! Budgets and idempotency records in PostgreSQL 14 or newer: one set for all replicas.
//!
//! ```no_run
//! use admit::{BudgetStore, Charge, Key, Now, Rules, Scope};
//! use admit_store::postgres::{PostgresConfig, PostgresStore};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let ingest = Scope::from_static("ingest");
//! let rules = Rules::new([ingest.clone()])?;
//! let store = PostgresStore::connect(PostgresConfig::new("postgres://localhost/app"), rules).await?;
//!
//! let charge = Charge::one(ingest, Key::of("tenant"), "10/second".parse()?);
//! let decision = store.take(&[charge], Now::Store).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A take alone is one round trip and one statement. Takes that come at once share one or two; an admission that replays a response
//! is two. A statement leaves no setting behind, so that PgBouncer in transaction mode works in front of it. The decisions are made
//! by functions in the store's schema (`sql/`); a budget is read with a `SELECT` on `rate_budgets`.
//!
//! [`PostgresStore::connect`] makes the tables and functions and changes them when a later version needs others. Where
//! the service's role has no right to, run it once with a role that has, and grant the service's role `USAGE` on the
//! schema and its sequences and `SELECT, INSERT, UPDATE, DELETE` on its tables.

mod admissions;
mod api_keys;
mod batch;
mod budgets;
mod coalescer;
mod config;
mod connections;
mod database;
mod driver;
mod held;
#[cfg(feature = "conformance")]
mod inspect;
mod leaderships;
mod migrate;
mod operations;
mod outage;
mod outlived;
mod queue;
mod records;
mod retention;
mod scope_check;
mod shape;
mod statement_error;
mod sweep;
mod tls;
mod undone;

use std::sync::Arc;

use admit::Rules;

pub use config::{PostgresConfig, SchemaName, SchemaNameError, UrlError};
pub use connections::{ConnectionError, Connections};
pub use deadpool_postgres::{BuildError, PoolError};
pub use migrate::ConnectError;
/// TLS by rustls, whose settings and errors [`PostgresConfig`] and [`ConnectError`] name.
pub use rustls;
pub use statement_error::StatementError;
/// The client of PostgreSQL, whose types [`Connections`] and [`PostgresStore::complete_in`] name.
pub use tokio_postgres;

use admissions::Admissions;
use coalescer::Coalescer;
use database::Database;
use sweep::Sweep;

/// Buckets and idempotency records in PostgreSQL. Clones share its connections.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    database: Database,
    config: Arc<PostgresConfig>,
    migrated: Option<Arc<str>>,
    rules: Arc<Rules>,
    coalescer: Coalescer,
    admissions: Admissions,
    peek: Arc<budgets::Peek>,
    sweep: Arc<Sweep>,
    records: Arc<records::Statements>,
}

impl PostgresStore {
    /// Connects, and makes or changes the tables as [`PostgresConfig::migrate`] says.
    ///
    /// Must be called on a Tokio runtime.
    ///
    /// # Errors
    /// [`ConnectError`], in words for the operator.
    pub async fn connect(config: PostgresConfig, rules: Rules) -> Result<Self, ConnectError> {
        let database = Database::new(&config)?;
        let migrated = migrate::migrate(&config, &database, &rules.scopes).await?.map(Arc::from);
        raise_retention(&config, &database, &rules).await?;
        let peek = Arc::new(budgets::Peek::new(database.schema()));
        let sweep = Arc::new(Sweep::new(database.schema()));
        let records = Arc::new(records::Statements::new(database.schema()));
        let coalescer = Coalescer::new(database.clone(), &config);
        let admissions = Admissions::new(database.clone(), &config, coalescer.clone(), records.clone());
        let (config, rules) = (Arc::new(config), Arc::new(rules));
        Ok(Self { database, config, migrated, rules, coalescer, admissions, peek, sweep, records })
    }

    /// How many takes, and admissions with a take, were sent whose answer never came, since the store was connected, and how many
    /// keys that were claimed for nobody could not be freed. Each may have debited its buckets, and was told as unavailable, if
    /// to anybody. A key that was claimed so is in flight until its lease lapses; where the terms are
    /// [`OnLapse::StayBlocked`](admit::idempotency::OnLapse::StayBlocked) it is then blocked until its time is over, though nothing
    /// ran.
    pub fn unanswered_takes(&self) -> u64 {
        self.coalescer.unanswered() + self.admissions.unanswered()
    }

    /// How many takes were refused from memory since the store was opened, without a look at the database.
    pub fn remembered_refusals(&self) -> u64 {
        self.coalescer.refusals().recalled()
    }

    /// A handle of the same tables and connections that holds takes to other rules. Handles with the rules before go on.
    /// New scopes are added to the constraint of the table, and a longer retention is kept for every sweep, as at the start.
    ///
    /// # Errors
    /// [`ConnectError`], if there are new scopes or a longer retention and the tables cannot take them.
    pub async fn with_rules(&self, rules: Rules) -> Result<Self, ConnectError> {
        if rules.scopes.iter().any(|scope| !self.rules.scopes.contains(scope)) {
            migrate::migrate(&self.config, &self.database, &rules.scopes).await?;
        }
        if rules.retention > self.rules.retention {
            raise_retention(&self.config, &self.database, &rules).await?;
        }
        Ok(Self { rules: Arc::new(rules), ..self.clone() })
    }
}

async fn raise_retention(
    config: &PostgresConfig,
    database: &Database,
    rules: &Rules,
) -> Result<(), ConnectError> {
    let failed = |source| ConnectError::Retention { schema: config.schema.as_str().to_owned(), source };
    retention::raise(database, rules.retention).await.map_err(failed)
}
