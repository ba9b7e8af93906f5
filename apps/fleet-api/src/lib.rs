//! The fleet API: secret reads, telemetry ingest and access sessions, under five rate budgets.
//!
//! Three bounded contexts, [`secrets`], [`access`] and [`observability`]. Each says in its domain what it needs of a rate
//! limiter, as a trait with a refusal of its own, and binds that port to a store of buckets in its `persistence` module.
//! None of them knows another, and none of their domains knows the store. What they share is who the callers are
//! ([`fleet`]) and how HTTP is spoken ([`http`]). [`app`] puts everything together.

pub mod access;
pub mod app;
pub mod fleet;
pub mod fleet_file;
pub mod http;
pub mod metrics;
pub mod observability;
mod operations;
pub mod random;
pub mod redacted;
pub mod rfc3339;
pub mod scopes;
pub mod secrets;
pub mod settings;
pub mod storage;
