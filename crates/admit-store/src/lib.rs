//! Stores of rate budgets and idempotency records.
//!
//! Each store implements [`BudgetStore`](admit::BudgetStore), [`IdempotencyStore`](admit::IdempotencyStore), both in one step
//! ([`AdmissionStore`](admit::AdmissionStore)), and [`Leader`], and gives the same decisions as every other, to the microsecond
//! and the last bit of the tokens.
//!
//! | store | for | feature |
//! | --- | --- | --- |
//! | [`MemoryStore`](memory::MemoryStore) | one process; forgets on a restart | `memory` |
//! | [`SqliteStore`](sqlite::SqliteStore) | one machine; forgets nothing | `sqlite` |
//! | [`PostgresStore`](postgres::PostgresStore) | many replicas | `postgres` |
//!
//! ```
//! use admit::{BudgetStore, Charge, Key, Now, Rules, Scope};
//! use admit_store::memory::MemoryStore;
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let ingest = Scope::from_static("ingest");
//! let rules = Rules::new([ingest.clone()])?;
//! let store = MemoryStore::new(rules);
//!
//! let charge = Charge::one(ingest, Key::hashed("tenant"), "2/minute".parse()?);
//! assert!(store.take(&[charge.clone()], Now::Store).await?.is_granted());
//! assert!(store.take(&[charge.clone()], Now::Store).await?.is_granted());
//!
//! let refused = store.take(&[charge], Now::Store).await?;
//! assert_eq!(refused.refusal().and_then(|refusal| refusal.retry_after_seconds()), Some(30));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Leased`](leases::Leased) in front of one spends slices of a bucket in memory (feature `leases`). [`AnyStore`] is one of
//! them, chosen by a URL. [`maintenance`] sweeps what is over. The `conformance` feature holds the suite that every store runs.

#[cfg(any(feature = "memory", feature = "sqlite", feature = "postgres"))]
mod any;
#[cfg(any(feature = "memory", feature = "sqlite", feature = "postgres"))]
#[cfg_attr(
    not(any(feature = "sqlite", feature = "postgres")),
    expect(unreachable_code, unused_variables, reason = "memory alone keeps nothing")
)]
mod api_keys;
mod leader;
#[cfg(any(feature = "memory", feature = "sqlite", feature = "postgres"))]
#[cfg_attr(
    not(any(feature = "sqlite", feature = "postgres")),
    expect(unused_variables, reason = "memory alone keeps nothing")
)]
mod operations;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod refusals;

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "leases")]
pub mod leases;
pub mod maintenance;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(any(feature = "memory", feature = "sqlite", feature = "postgres"))]
pub use any::{AnyStore, AnyStoreError, RulesError};
#[cfg(any(feature = "memory", feature = "sqlite", feature = "postgres"))]
pub use api_keys::{ApiKey, ApiKeysError, MAX_API_KEYS};
pub use leader::{Leader, Leadership};
#[cfg(any(feature = "memory", feature = "sqlite", feature = "postgres"))]
pub use operations::{MAX_LISTED, OpenExistingError};
