//! Binds the issuance limiter to a store of buckets, and the ledger to a store of idempotency records.

mod ledger;
mod limiter;

pub use ledger::{StoreLedger, record_key};
pub use limiter::{ACCESS_ISSUANCE_DOMAIN, IssuanceBudgets, StoreIssuanceLimiter};
