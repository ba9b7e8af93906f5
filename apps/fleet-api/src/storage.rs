//! The store that a deployment names.

use admit::{Rules, ScopesError};
use admit_store::postgres::{PostgresConfig, PostgresStore, SchemaNameError};
use admit_store::{AnyStore, AnyStoreError};

use crate::scopes;
use crate::settings::DatabaseUrl;

/// The schema of the tables in PostgreSQL.
const SCHEMA: &str = "plexsphere";

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The set of scopes is wrong.
    #[error(transparent)]
    Scopes(#[from] ScopesError),
    /// The name of the schema is wrong.
    #[error(transparent)]
    Schema(#[from] SchemaNameError),
    /// The store cannot be opened.
    #[error("FLEET_DATABASE_URL names a store that cannot be opened")]
    Open(#[from] AnyStoreError),
}

/// Opens the store at `url` and brings its tables up to date.
///
/// A store that cannot be opened is an error at once: whoever starts the service starts it again. One that goes away
/// later is waited for.
///
/// # Errors
/// [`StorageError`].
pub async fn open(url: &DatabaseUrl) -> Result<AnyStore, StorageError> {
    let rules: Rules = scopes::rules()?;
    if url.as_str().starts_with("sqlite:") {
        return Ok(AnyStore::open(url.as_str(), rules).await?);
    }
    let mut config = PostgresConfig::new(url.as_str());
    config.schema = SCHEMA.parse()?;
    let store = PostgresStore::connect(config, rules).await.map_err(AnyStoreError::from)?;
    Ok(AnyStore::Postgres(store))
}
