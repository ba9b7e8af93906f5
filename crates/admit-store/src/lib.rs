//! Stores of rate budgets and idempotency records.
//!
//! Each store implements [`BudgetStore`](admit::BudgetStore), [`IdempotencyStore`](admit::IdempotencyStore) and
//! [`Leader`], and gives the same decisions as every other, to the microsecond and the last bit of the tokens.
//!
//! | store | for | feature |
//! | --- | --- | --- |
//! | [`MemoryStore`](memory::MemoryStore) | one process; forgets on a restart | `memory` |
//! | `SqliteStore` | one machine; forgets nothing | `sqlite` |
//! | `PostgresStore` | many replicas | `postgres` |
//!
//! ```
//! use admit::{BudgetStore, Charge, Key, Now, Retention, Rules, Scope, Scopes};
//! use admit_store::memory::MemoryStore;
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let ingest = Scope::from_static("ingest");
//! let rules = Rules { scopes: Scopes::new([ingest.clone()])?, retention: Retention::DEFAULT };
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
//! The `conformance` feature holds the suite that every store runs.

mod leader;

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "memory")]
pub mod memory;

pub use leader::{Leader, Leadership};
