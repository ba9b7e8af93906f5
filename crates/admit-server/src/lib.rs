//! The `admit` program as a library: the policy file, and the fronts that decide by it.

pub mod admin;
pub mod api;
pub mod authorize;
mod bearer;
mod body;
mod body_bytes;
pub mod certificates;
pub mod cli;
pub mod engine;
mod envoy;
mod front;
pub mod gateway;
pub mod metrics;
pub mod path;
pub mod policy;

pub use front::Front;
