//! Brings the tables up to date, whichever of several processes comes first.

use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use super::connections::{Connections, Failure};

/// Each brings the tables from the version of its place to the next.
const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001_memory.sql")];

/// Holds until the transaction ends: one process migrates, the others wait and find it done.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended('memory-api migrations', 0))";
/// What somebody has dropped or changed since would otherwise fail each request, long after the start.
const SHAPE: &str = include_str!("shape.sql");
const MAKE: &str = "
    CREATE SCHEMA IF NOT EXISTS memory;
    CREATE TABLE IF NOT EXISTS memory.schema_version (version integer NOT NULL);
    INSERT INTO memory.schema_version SELECT 0 WHERE NOT EXISTS (SELECT FROM memory.schema_version);
";

pub(super) async fn run(connections: &Connections) -> Result<(), Failure> {
    let migrate = connections.transaction(|transaction| Box::pin(migrate(transaction)));
    migrate.await
}

async fn migrate(transaction: &Transaction<'_>) -> Result<(), Failure> {
    transaction.batch_execute(LOCK).await?;
    if !is_made(transaction).await? {
        transaction.batch_execute(MAKE).await?;
    }
    let known = MIGRATIONS.len() as i32;
    let versions = transaction.query_typed("SELECT version::integer FROM memory.schema_version", &[]).await?;
    let versions: Vec<i32> = versions.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let version = match versions[..] {
        [version] if version >= 0 => version,
        _ => return Err(Failure::NoVersion(versions)),
    };
    if version > known {
        return Err(Failure::Newer(version, known));
    }
    for migration in MIGRATIONS.iter().skip(version.unsigned_abs() as usize) {
        transaction.batch_execute(migration).await?;
    }
    if version < known {
        let update = "UPDATE memory.schema_version SET version = $1";
        transaction.execute_typed(update, &[(&known, Type::INT4)]).await?;
    }
    transaction.batch_execute(SHAPE).await.map_err(|error| match error.code() {
        Some(code) if code.code().starts_with("42") => Failure::Damaged(error), // Something that is named is not there.
        _ => error.into(),
    })
}

/// Asked first, so that a role that may not create schemas can start once one that may has.
async fn is_made(transaction: &Transaction<'_>) -> Result<bool, Failure> {
    let made = "SELECT to_regclass('memory.schema_version') IS NOT NULL";
    Ok(transaction.query_typed_one(made, &[]).await?.try_get(0)?)
}
