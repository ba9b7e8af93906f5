//! Which store, chosen at run time by a URL.

use std::time::Duration;

use admit::idempotency::{Fingerprint, RecordKey, Terms};
use admit::{
    AdmissionError, AdmissionStore, BudgetStore, Charge, Decision, Now, Rules, TakeError, Unavailable,
    Verdict,
};

use crate::{Leader, Leadership};

/// One of the stores. An enum, so that what is generic over a store needs no allocation for each call.
///
/// ```
/// use admit::{BudgetStore, Charge, Key, Now, Rules, Scope};
/// use admit_store::AnyStore;
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let ingest = Scope::from_static("ingest");
/// let rules = Rules::new([ingest.clone()])?;
/// let store = AnyStore::open("memory:", rules).await?;
///
/// let charge = Charge::one(ingest, Key::hashed("tenant"), "10/second".parse()?);
/// assert!(store.take(&[charge], Now::Store).await?.is_granted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyStore {
    /// In the memory of this process.
    #[cfg(feature = "memory")]
    Memory(crate::memory::MemoryStore),
    /// In a file.
    #[cfg(feature = "sqlite")]
    Sqlite(crate::sqlite::SqliteStore),
    /// In PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(crate::postgres::PostgresStore),
}

/// Why a URL could not be opened as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnyStoreError {
    /// The URL names no store. It is not repeated, as it may hold a password.
    #[error("the store's URL is none of {}", FORMS)]
    Url,
    /// The file could not be opened.
    #[cfg(feature = "sqlite")]
    #[error(transparent)]
    Sqlite(#[from] crate::sqlite::OpenError),
    /// The database could not be reached or prepared.
    #[cfg(feature = "postgres")]
    #[error(transparent)]
    Postgres(#[from] crate::postgres::ConnectError),
}

/// Why a store cannot hold takes to other rules.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// Too many scopes have come and gone.
    #[cfg(feature = "memory")]
    #[error(transparent)]
    Memory(#[from] crate::memory::TooManyScopes),
    /// The file cannot take the new scopes, or the longer retention.
    #[cfg(feature = "sqlite")]
    #[error("the new scopes or the longer retention cannot be kept")]
    Sqlite(#[source] Unavailable),
    /// The tables cannot take the new scopes, or the longer retention.
    #[cfg(feature = "postgres")]
    #[error(transparent)]
    Postgres(#[from] crate::postgres::ConnectError),
}

const FORMS: &str = "memory:, sqlite:PATH and postgres://USER:PASSWORD@HOST/DATABASE (as far as this program was built \
                     with them)";

impl AnyStore {
    /// Opens `memory:`, `sqlite:PATH`, or `postgres://…` (also `postgresql://…`), each with its defaults.
    ///
    /// # Errors
    /// [`AnyStoreError`] if the URL has another form, or its store cannot be opened.
    pub async fn open(url: &str, rules: Rules) -> Result<Self, AnyStoreError> {
        match url.split_once(':') {
            #[cfg(feature = "memory")]
            Some(("memory", "")) => Ok(Self::Memory(crate::memory::MemoryStore::new(rules))),
            #[cfg(feature = "sqlite")]
            Some(("sqlite", path)) if !path.trim_start_matches('/').is_empty() => {
                let path = path.strip_prefix("//").unwrap_or(path);
                Ok(Self::Sqlite(crate::sqlite::SqliteStore::open(path, rules).await?))
            }
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", _)) => {
                let config = crate::postgres::PostgresConfig::new(url);
                Ok(Self::Postgres(crate::postgres::PostgresStore::connect(config, rules).await?))
            }
            _ => Err(AnyStoreError::Url),
        }
    }

    /// A handle of the same buckets and records that holds takes to other rules: other scopes, another retention. Handles
    /// with the rules before go on. No bucket is lost, and idle ones are kept for the longest retention that the store was
    /// given, by whichever process. A store is not asked unless there are new scopes or the retention is longer.
    ///
    /// # Errors
    /// [`RulesError`] if there are new scopes or a longer retention, and the store cannot take them.
    pub async fn with_rules(&self, rules: Rules) -> Result<Self, RulesError> {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(store) => Ok(Self::Memory(store.with_rules(rules)?)),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => {
                Ok(Self::Sqlite(store.with_rules(rules).await.map_err(RulesError::Sqlite)?))
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => Ok(Self::Postgres(store.with_rules(rules).await?)),
        }
    }
}

/// The same call on whichever store it is.
macro_rules! on {
    ($any:expr, $store:ident => $call:expr) => {
        match $any {
            #[cfg(feature = "memory")]
            AnyStore::Memory($store) => $call,
            #[cfg(feature = "sqlite")]
            AnyStore::Sqlite($store) => $call,
            #[cfg(feature = "postgres")]
            AnyStore::Postgres($store) => $call,
        }
    };
}

/// The same for a call that is waited for. What stores of other processes and files need for it is much, and is put aside:
/// each request holds room for what its calls need, and one in memory needs next to nothing.
macro_rules! on_waiting {
    ($any:expr, $store:ident => $call:expr) => {
        match $any {
            #[cfg(feature = "memory")]
            AnyStore::Memory($store) => $call.await,
            #[cfg(feature = "sqlite")]
            AnyStore::Sqlite($store) => Box::pin($call).await,
            #[cfg(feature = "postgres")]
            AnyStore::Postgres($store) => Box::pin($call).await,
        }
    };
}

impl BudgetStore for AnyStore {
    fn rules(&self) -> &Rules {
        on!(self, store => store.rules())
    }

    async fn take(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        on_waiting!(self, store => store.take(charges, now))
    }

    async fn peek(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        on_waiting!(self, store => store.peek(charges, now))
    }

    async fn refund(&self, charges: &[Charge]) -> Result<(), TakeError> {
        on_waiting!(self, store => store.refund(charges))
    }

    async fn delete_idle(&self, now: Now) -> Result<u64, Unavailable> {
        on_waiting!(self, store => store.delete_idle(now))
    }
}

macro_rules! via {
    ($any:expr, $method:ident($($argument:expr),*)) => {
        on_waiting!($any, store => store.$method($($argument),*))
    };
}

admit::pass_records_on!([] AnyStore, via);

impl AdmissionStore for AnyStore {
    async fn admit(
        &self,
        charges: &[Charge],
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Verdict, AdmissionError> {
        via!(self, admit(charges, key, fingerprint, terms, now))
    }

    fn admits_in_one_step(&self, charges: &[Charge]) -> bool {
        on!(self, store => store.admits_in_one_step(charges))
    }
}

impl Leader for AnyStore {
    async fn lead(
        &self,
        name: &str,
        holder: &str,
        lease: Duration,
        now: Now,
    ) -> Result<Option<Leadership>, Unavailable> {
        on_waiting!(self, store => store.lead(name, holder, lease, now))
    }
}

#[cfg(test)]
mod tests {
    use admit::Scope;

    use super::*;

    fn rules() -> Rules {
        Rules::new([Scope::from_static("a")]).unwrap()
    }

    #[tokio::test]
    async fn another_url_is_told_the_forms_and_not_repeated() {
        for wrong in
            ["", "memory", "memory:x", "sqlite:", "sqlite://", "mysql://user:secret@host/db", "./a.db"]
        {
            let error = AnyStore::open(wrong, rules()).await.unwrap_err();
            assert!(matches!(error, AnyStoreError::Url), "{wrong}");
            assert!(error.to_string().contains("sqlite:PATH") && !error.to_string().contains("secret"));
        }
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn a_file_is_named_with_and_without_slashes() {
        let directory = tempfile::tempdir().unwrap();
        for (form, name) in [("sqlite:", "one.db"), ("sqlite://", "two.db")] {
            let path = directory.path().join(name);
            let store = AnyStore::open(&format!("{form}{}", path.display()), rules()).await.unwrap();
            assert!(matches!(store, AnyStore::Sqlite(_)) && path.exists());
        }
    }
}
