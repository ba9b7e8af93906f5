//! The `admit` program as a library: the policy file, and the fronts that decide by it.

pub mod admin;
pub mod authorize;
pub mod cli;
pub mod engine;
mod front;
pub mod gateway;
pub mod metrics;
pub mod path;
pub mod policy;
pub mod reload;
pub mod source;

pub use front::Front;
