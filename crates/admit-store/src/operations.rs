//! What an operator does with buckets: list them, look at one, have one full again.

use std::path::PathBuf;

use admit::{Bucket, Key, Rules, Scope, Unavailable};

use crate::{AnyStore, AnyStoreError};

/// The most buckets that one call lists.
pub const MAX_LISTED: usize = 10_000;

/// A store that should have been there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenExistingError {
    /// It lives in another process.
    #[error("buckets in memory are those of the process that has them; no other can open them")]
    Memory,
    /// There is no such file.
    #[error("there is no {0}; a program that serves makes it, or `admit migrate`")]
    NoFile(PathBuf),
    /// It is there, and cannot be opened.
    #[error(transparent)]
    Open(#[from] AnyStoreError),
}

impl AnyStore {
    /// Opens a store as [`AnyStore::open`] does, and makes none: no file, and on PostgreSQL no tables and no scopes. A
    /// SQLite file that is there gets what it lacks.
    ///
    /// # Errors
    /// [`OpenExistingError`] if something would have to be made, or the store cannot be opened.
    pub async fn open_existing(url: &str, rules: Rules) -> Result<Self, OpenExistingError> {
        match url.split_once(':') {
            #[cfg(feature = "memory")]
            Some(("memory", "")) => Err(OpenExistingError::Memory),
            #[cfg(feature = "sqlite")]
            Some(("sqlite", path)) => {
                let path = PathBuf::from(path.strip_prefix("//").unwrap_or(path));
                match path.is_file() {
                    true => Ok(Self::open(url, rules).await?),
                    false => Err(OpenExistingError::NoFile(path)),
                }
            }
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", _)) => {
                let mut config = crate::postgres::PostgresConfig::new(url);
                config.migrate = false;
                let store = crate::postgres::PostgresStore::connect(config, rules).await;
                Ok(Self::Postgres(store.map_err(AnyStoreError::from)?))
            }
            _ => Err(AnyStoreError::Url.into()),
        }
    }

    /// `memory`, `sqlite` or `postgres`.
    pub fn kind(&self) -> &'static str {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(_) => "memory",
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => "sqlite",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "postgres",
        }
    }

    /// What was made or changed when it was opened, for the operator; nothing if all was there.
    pub fn migrated(&self) -> Option<&str> {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(_) => None,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.migrated(),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.migrated(),
        }
    }

    /// How many takes may have debited their buckets, and were granted to nobody, since it was opened: those whose answer never
    /// came, and those of callers that went away which could not be given back. So much less was admitted. A key that was claimed
    /// so is in flight until its lease lapses; where the terms are
    /// [`OnLapse::StayBlocked`](admit::idempotency::OnLapse::StayBlocked) it is then blocked until its time is over, though nothing
    /// ran. In memory there are none.
    pub fn unanswered_takes(&self) -> u64 {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(_) => 0,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.unanswered_takes(),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.unanswered_takes(),
        }
    }

    /// How many takes this process refused by what it remembers of their buckets since the store was opened, without asking it.
    /// In memory there are none.
    pub fn remembered_refusals(&self) -> u64 {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(_) => 0,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.remembered_refusals(),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.remembered_refusals(),
        }
    }

    /// The buckets of a scope in the order of their keys, those behind `after`, as many as `limit` and no more than
    /// [`MAX_LISTED`].
    ///
    /// # Errors
    /// [`Unavailable`] if the store failed.
    pub async fn buckets(
        &self,
        scope: &Scope,
        after: Option<Key>,
        limit: usize,
    ) -> Result<Vec<(Key, Bucket)>, Unavailable> {
        let limit = limit.min(MAX_LISTED);
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(store) => store.buckets(scope, after, limit),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.buckets(scope, after, limit).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.buckets(scope, after, limit).await,
        }
    }

    /// A bucket; nothing if there is none, which is one that is full.
    ///
    /// # Errors
    /// [`Unavailable`] if the store failed.
    pub async fn bucket(&self, scope: &Scope, key: Key) -> Result<Option<Bucket>, Unavailable> {
        // The only key behind the one before it.
        let before = u128::from_be_bytes(*key.as_bytes()).checked_sub(1);
        let before = before.map(|before| Key::from_bytes(before.to_be_bytes()));
        let found = self.buckets(scope, before, 1).await?.into_iter().next();
        Ok(found.filter(|(found, _)| *found == key).map(|(_, bucket)| bucket))
    }

    /// Deletes a bucket, so that it is full again, and tells whether there was one. What was granted from it before no
    /// longer counts: for an operator who wants that.
    ///
    /// # Errors
    /// [`Unavailable`] if the store failed.
    pub async fn delete_bucket(&self, scope: &Scope, key: Key) -> Result<bool, Unavailable> {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(store) => store.delete_bucket(scope, key),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.delete_bucket(scope, key).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.delete_bucket(scope, key).await,
        }
    }
}
