//! Secret reads: a node fetches a secret it may have, sealed under its own key.
//!
//! In this order: authenticate, take the two read budgets, resolve the name, authorise, read the version, seal.

mod limiter;
mod sealing;
mod vault;

pub mod http;
pub mod persistence;

pub use limiter::{ReadLimitError, ReadLimiter, ReadRefused};
pub use sealing::{SealError, seal};
pub use vault::{MAX_SECRET_BYTES, ReadError, StoredSecret, Vault, is_secret_name};
