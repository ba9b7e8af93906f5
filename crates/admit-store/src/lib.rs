//! Stores of rate budgets and idempotency records.

#[cfg(feature = "postgres")]
pub mod postgres;
