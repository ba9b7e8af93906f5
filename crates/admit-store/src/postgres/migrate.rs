//! Makes and changes the tables, from any number of replicas at once.
//!
//! All pending migrations run in one transaction under an advisory lock of that transaction (one of the session would
//! not survive a pooler). A store that finds everything in place writes nothing, locks nothing and needs no right to
//! change tables.

use std::error::Error;
use std::time::Duration;

use admit::{Scopes, Unavailable};
use deadpool_postgres::BuildError;
use refinery_core::traits::r#async::{AsyncMigrate, AsyncQuery, AsyncTransaction};
use refinery_core::{Migration, Runner};
use time::OffsetDateTime;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use super::connections::sql_state;
use super::database::{CallError, Database, millis};
use super::{ConnectionError, PostgresConfig, scope_check, shape};

/// In order. A migration that was published never changes: the history has its checksum.
const MIGRATIONS: [(&str, &str); 9] = [
    ("V1__rate_budgets", include_str!("sql/V1__rate_budgets.sql")),
    ("V2__idempotency", include_str!("sql/V2__idempotency.sql")),
    ("V3__leaderships", include_str!("sql/V3__leaderships.sql")),
    ("V4__api_keys", include_str!("sql/V4__api_keys.sql")),
    ("V5__retention", include_str!("sql/V5__retention.sql")),
    ("V6__many_takes", include_str!("sql/V6__many_takes.sql")),
    ("V7__sweep_by_pages", include_str!("sql/V7__sweep_by_pages.sql")),
    ("V8__admissions", include_str!("sql/V8__admissions.sql")),
    ("V9__no_jit", include_str!("sql/V9__no_jit.sql")),
];

/// PostgreSQL 14 brought exact `extract(epoch …)` and functions whose bodies are parsed when they are made.
const OLDEST_SERVER: i32 = 140_000;

/// A migration of large tables may take its time; a server that hangs must not hold up a start for ever.
const MIGRATION_LIMIT: Duration = Duration::from_secs(600);

/// First half of the advisory lock's key; the second is a hash of the schema's name. "Admt".
const LOCK_CLASS: i32 = 0x4164_6d74;

/// Why a store could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is wrong.
    #[error("the PostgreSQL URL cannot be read")]
    Url(#[source] tokio_postgres::Error),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    /// The pool cannot be made.
    #[error("the pool of connections cannot be made")]
    Pool(#[source] BuildError),
    /// The server cannot be reached, or did not answer.
    #[error("PostgreSQL cannot be asked for the state of schema {schema}")]
    Unreachable {
        /// The schema of the store.
        schema: String,
        /// Why.
        source: Unavailable,
    },
    /// The server is too old.
    #[error("PostgreSQL {version} is too old; the store needs 14 or newer")]
    OldServer {
        /// The version the server tells.
        version: String,
    },
    /// The tables are not as this version needs them, and the store was told not to change them.
    #[error("schema {schema} lacks {pending}, and this store is set not to migrate; migrate it first")]
    NotMigrated {
        /// The schema of the store.
        schema: String,
        /// What is missing.
        pending: String,
    },
    /// The role may not make or change the tables.
    #[error(
        "the role may not migrate schema {schema}, which lacks {pending}; start once with a role that may (it needs \
         CREATE on the database, or on the schema if that exists, and to own the tables if they do), or grant that"
    )]
    Privilege {
        /// The schema of the store.
        schema: String,
        /// What is missing.
        pending: String,
        /// What the server said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A newer version of the store has changed the tables.
    #[error(
        "schema {schema} has migration {found}, newer than the {known} that this program knows; upgrade the program"
    )]
    Newer {
        /// The schema of the store.
        schema: String,
        /// Its newest migration.
        found: i32,
        /// The newest of this program.
        known: i32,
    },
    /// The tables are not those that the migrations made.
    #[error(
        "schema {schema} was migrated, and yet lacks {lacks}; restore it from a backup, or drop or rename the schema, and \
         the next start makes it anew, with full budgets and no idempotency records"
    )]
    Damaged {
        /// The schema of the store.
        schema: String,
        /// What is missing, or another than it should be.
        lacks: String,
    },
    /// The retention could not be kept, so that a sweep by another might delete what is owed.
    #[error("schema {schema} cannot keep the retention of the idle buckets")]
    Retention {
        /// The schema of the store.
        schema: String,
        /// Why.
        source: Unavailable,
    },
    /// A migration failed, and with it all were undone.
    #[error("migrating schema {schema}, which lacks {pending}, failed; nothing was changed")]
    Migration {
        /// The schema of the store.
        schema: String,
        /// What is missing.
        pending: String,
        /// What the server said.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// How far a schema is.
#[derive(Debug)]
struct Standing {
    has_schema: bool,
    /// The number of the newest migration that was applied; 0 if none was.
    newest: i32,
    pending: Vec<String>,
    /// What the migrations made and is not there; looked for if none is pending.
    lacks: Option<String>,
    scopes: scope_check::Standing,
}

/// Brings the tables to what this version and `scopes` need, and tells what they lacked.
pub(super) async fn migrate(
    config: &PostgresConfig,
    database: &Database,
    scopes: &Scopes,
) -> Result<Option<String>, ConnectError> {
    let schema = config.schema.as_str();
    let acquired = database.connections().acquire().await.map_err(CallError::from);
    let mut connection = acquired.map_err(|source| unreachable(schema, source))?;
    let found = standing(&connection, config, database, scopes).await?;
    let Some(pending) = found.pending() else { return Ok(None) };
    let schema = schema.to_owned();
    if !config.migrate {
        return Err(ConnectError::NotMigrated { schema, pending });
    }
    tracing::info!(schema, pending, "migrating the rate budget store");
    let patience = Patience::of(config);
    let run = run(&mut connection, database.schema(), scopes, &patience);
    let error = match tokio::time::timeout(MIGRATION_LIMIT, run).await {
        Ok(Ok(())) => return standing(&connection, config, database, scopes).await.map(|_| Some(pending)),
        Ok(Err(error)) => error,
        Err(_) => {
            drop(deadpool_postgres::Object::take(connection)); // Its transaction must not go back to the pool.
            return Err(ConnectError::Migration {
                schema,
                pending,
                source: ConnectionError::TimedOut(MIGRATION_LIMIT).into(),
            });
        }
    };
    if sql_state(error.as_ref()) == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        return Err(ConnectError::Privilege { schema, pending, source: error });
    }
    Err(ConnectError::Migration { schema, pending, source: error })
}

/// How far the schema is, if this program can use it at all.
async fn standing(
    client: &Client,
    config: &PostgresConfig,
    database: &Database,
    scopes: &Scopes,
) -> Result<Standing, ConnectError> {
    let schema = || config.schema.as_str().to_owned();
    let limit = config.statement_timeout;
    let looked = tokio::time::timeout(limit, look(client, database.schema(), scopes)).await;
    let looked = looked
        .map_err(|_| CallError::from(ConnectionError::TimedOut(limit)))
        .and_then(|looked| looked.map_err(CallError::from));
    let standing = looked
        .map_err(|source| unreachable(&schema(), source))?
        .map_err(|version| ConnectError::OldServer { version })?;
    let known = MIGRATIONS.len() as i32;
    if standing.newest > known {
        return Err(ConnectError::Newer { schema: schema(), found: standing.newest, known });
    }
    match &standing.lacks {
        Some(lacks) => Err(ConnectError::Damaged { schema: schema(), lacks: lacks.clone() }),
        None => Ok(standing),
    }
}

fn unreachable(schema: &str, source: CallError) -> ConnectError {
    ConnectError::Unreachable { schema: schema.to_owned(), source: source.into() }
}

impl Standing {
    /// What is missing, for the operator; nothing if all is there.
    fn pending(&self) -> Option<String> {
        let mut missing = self.pending.clone();
        if !self.scopes.missing.is_empty() {
            missing.push(format!("the scopes {}", self.scopes.missing.join(", ")));
        } else if !self.scopes.validated {
            missing.push("a validated constraint on the scopes".to_owned());
        }
        (!missing.is_empty()).then(|| missing.join("; "))
    }
}

/// What is there and what is missing. The inner error is the version of a server that is too old.
async fn look(
    client: &Client,
    schema: &str,
    scopes: &Scopes,
) -> Result<Result<Standing, String>, tokio_postgres::Error> {
    // The catalogues are read, as the names alone may be answered from before another replica made them.
    const ASK: &str = "SELECT current_setting('server_version_num')::int, current_setting('server_version'), \
                       EXISTS (SELECT FROM pg_namespace WHERE oid = to_regnamespace($1)), \
                       EXISTS (SELECT FROM pg_class WHERE oid = to_regclass($2))";
    let history = format!("{schema}.migrations");
    let row = client.query_typed_one(ASK, &[(&schema, Type::TEXT), (&history, Type::TEXT)]).await?;
    if row.try_get::<_, i32>(0)? < OLDEST_SERVER {
        return Ok(Err(row.try_get(1)?));
    }
    let applied: Vec<(i32, String)> = if row.try_get(3)? {
        let rows = client.query_typed(&format!("SELECT version, checksum FROM {history}"), &[]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, _>>()?
    } else {
        Vec::new()
    };
    let pending: Vec<_> = (migrations(schema).iter())
        .filter(|wanted| !applied.contains(&(wanted.version(), wanted.checksum().to_string())))
        .map(|wanted| format!("migration {wanted}"))
        .collect();
    let newest = applied.iter().map(|(version, _)| *version).max().unwrap_or(0);
    let lacks = if pending.is_empty() { shape::lacks(client, schema).await? } else { None };
    let scopes = scope_check::look(client, schema, scopes).await?;
    Ok(Ok(Standing { has_schema: row.try_get(2)?, newest, pending, lacks, scopes }))
}

/// How long a migration waits.
struct Patience {
    /// For other replicas that migrate.
    turn: Duration,
    /// For a table that is in use, at a time. All takes wait behind a change of their table, so it gives up before they
    /// do, lets them pass, and asks again.
    table: Duration,
    /// How often it asks again.
    repeats: u32,
}

impl Patience {
    fn of(config: &PostgresConfig) -> Self {
        let table = (config.lock_timeout / 2).max(Duration::from_millis(1));
        let repeats = config.migration_lock_timeout.as_millis() / table.as_millis();
        let repeats = u32::try_from(repeats).unwrap_or(u32::MAX);
        Self { turn: config.migration_lock_timeout, table, repeats }
    }
}

async fn run(
    client: &mut Client,
    schema: &str,
    scopes: &Scopes,
    patience: &Patience,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut transaction = begin(client, schema, patience).await?;
    for repeat in 0.. {
        let attempt = transaction.transaction().await?;
        match change(&attempt, schema, scopes).await {
            Err(error)
                if repeat < patience.repeats
                    && sql_state(error.as_ref()) == Some(&SqlState::LOCK_NOT_AVAILABLE) =>
            {
                attempt.rollback().await?;
            }
            Err(error) => return Err(error),
            Ok(()) => {
                attempt.commit().await?;
                break;
            }
        }
    }
    transaction.commit().await?;

    // In a transaction of its own, so that the scan of the table does not hold up takes.
    let transaction = begin(client, schema, patience).await?;
    scope_check::validate(&transaction, schema, scopes).await?;
    transaction.commit().await?;
    Ok(())
}

/// Under the lock: another replica may have done it meanwhile.
async fn change(
    transaction: &Transaction<'_>,
    schema: &str,
    scopes: &Scopes,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let standing = look(transaction.client(), schema, scopes)
        .await?
        .map_err(|version| format!("PostgreSQL {version}"))?;
    if !standing.has_schema {
        transaction.batch_execute(&format!("CREATE SCHEMA {schema}")).await?;
    }
    if !standing.pending.is_empty() {
        Runner::new(&migrations(schema))
            .set_migration_table_name(format!("{schema}.migrations"))
            .run_async(&mut Driver(transaction))
            .await?;
    }
    Ok(scope_check::grow(transaction, schema, scopes).await?)
}

/// A transaction that is the only one of its kind.
async fn begin<'a>(
    client: &'a mut Client,
    schema: &str,
    patience: &Patience,
) -> Result<Transaction<'a>, tokio_postgres::Error> {
    let transaction =
        client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
    let lock_timeout = async |limit| {
        const SET: &str = "SELECT set_config('lock_timeout', $1, true)";
        transaction.query_typed(SET, &[(&millis(limit).to_string(), Type::TEXT)]).await
    };
    transaction.batch_execute("SET LOCAL statement_timeout = 0").await?;
    lock_timeout(patience.turn).await?;
    const LOCK: &str = "SELECT pg_advisory_xact_lock($1, hashtext($2))";
    transaction.query_typed(LOCK, &[(&LOCK_CLASS, Type::INT4), (&schema, Type::TEXT)]).await?;
    // Keeps a vacuum off the table, which gives way only to who waits for longer than a take does. No take waits for this.
    const EXISTS: &str = "SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass($1))";
    let table = format!("{schema}.rate_budgets");
    if transaction.query_typed_one(EXISTS, &[(&table, Type::TEXT)]).await?.try_get(0)? {
        transaction.batch_execute(&format!("LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE")).await?;
    }
    lock_timeout(patience.table).await?;
    Ok(transaction)
}

#[allow(clippy::expect_used)] // Of constants: a test makes them all.
fn migrations(schema: &str) -> Vec<Migration> {
    (MIGRATIONS.iter())
        .map(|(name, sql)| Migration::unapplied(name, &sql.replace("{schema}", schema)))
        .map(|migration| migration.expect("the names are V1__name"))
        .collect()
}

/// Runs refinery's statements inside one transaction and unnamed, where its own driver makes one for each migration and
/// prepares named statements, which poolers mix up.
struct Driver<'a>(&'a Transaction<'a>);

impl AsyncTransaction for Driver<'_> {
    type Error = tokio_postgres::Error;

    async fn execute<'a, T: Iterator<Item = &'a str> + Send + 'a>(
        &'a mut self,
        queries: T,
    ) -> Result<usize, Self::Error> {
        let mut count = 0;
        for query in queries {
            self.0.batch_execute(query).await?;
            count += 1;
        }
        Ok(count)
    }
}

impl AsyncQuery<Vec<Migration>> for Driver<'_> {
    async fn query(&mut self, query: &str) -> Result<Vec<Migration>, Self::Error> {
        let rows = self.0.query_typed(query, &[]).await?;
        rows.iter()
            .map(|row| {
                let checksum: String = row.try_get(3)?;
                let checksum = checksum.parse().unwrap_or(0); // Not a checksum: reported as another migration's.
                let applied_on = OffsetDateTime::UNIX_EPOCH; // Not asked for.
                Ok(Migration::applied(row.try_get(0)?, row.try_get(1)?, applied_on, checksum))
            })
            .collect()
    }
}

impl AsyncMigrate for Driver<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_and_name_no_schema() {
        let migrations = migrations("\"s\"");
        assert_eq!(migrations.len(), MIGRATIONS.len());
        for (i, migration) in migrations.iter().enumerate() {
            assert_eq!(migration.version() as usize, i + 1);
            assert!(!migration.sql().unwrap().contains('{'));
        }
    }
}
