//! API keys that are kept beside the buckets, so that all replicas know the same ones.

use admit::{Timestamp, Unavailable};

use crate::AnyStore;

/// The most keys that a store keeps: a program holds them all in memory, some 30 MB.
pub const MAX_API_KEYS: usize = 100_000;

/// A key that is known: its hash, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// The SHA-256 of the key. The key itself is kept nowhere.
    pub sha256: [u8; 32],
    /// Whose it is; not empty.
    pub tenant: String,
    /// What the tenant pays for; nothing for the plain budgets. Not empty.
    pub plan: Option<String>,
    /// What people call the key. Not empty.
    pub name: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
}

/// Why keys could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiKeysError {
    /// A store in memory forgets on a restart, and no other process can add to it.
    #[error("a store in memory keeps no API keys; keep them in a file, or use SQLite or PostgreSQL")]
    Memory,
    /// As many as there may be.
    #[error("the store has {MAX_API_KEYS} API keys, and takes no more; revoke some")]
    TooMany,
    /// The key is there already.
    #[error("the store has this key already")]
    Exists,
    /// The store failed.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

impl AnyStore {
    /// All keys, no more than [`MAX_API_KEYS`], in the order of their hashes.
    ///
    /// # Errors
    /// [`ApiKeysError`] if the store keeps none, or failed.
    pub async fn api_keys(&self) -> Result<Vec<ApiKey>, ApiKeysError> {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(_) => Err(ApiKeysError::Memory),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => Ok(store.api_keys().await?),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => Ok(store.api_keys().await?),
        }
    }

    /// Adds a key.
    ///
    /// # Errors
    /// [`ApiKeysError`] if it is there already, there are too many, the store keeps none, or failed.
    pub async fn add_api_key(&self, key: &ApiKey) -> Result<(), ApiKeysError> {
        if self.api_keys().await?.len() >= MAX_API_KEYS {
            return Err(ApiKeysError::TooMany);
        }
        let added = match self {
            #[cfg(feature = "memory")]
            Self::Memory(_) => return Err(ApiKeysError::Memory),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.add_api_key(key).await?,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.add_api_key(key).await?,
        };
        if added { Ok(()) } else { Err(ApiKeysError::Exists) }
    }

    /// Deletes a key, and tells whether there was one.
    ///
    /// # Errors
    /// [`ApiKeysError`] if the store keeps none, or failed.
    pub async fn delete_api_key(&self, sha256: [u8; 32]) -> Result<bool, ApiKeysError> {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(_) => Err(ApiKeysError::Memory),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => Ok(store.delete_api_key(sha256).await?),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => Ok(store.delete_api_key(sha256).await?),
        }
    }
}
