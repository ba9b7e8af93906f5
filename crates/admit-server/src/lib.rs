//! The `admit` program as a library: the policy file, and the fronts that decide by it.

pub mod admin;
pub mod api;
pub mod authorize;
mod bearer;
mod body;
mod body_bytes;
pub mod bounds;
pub mod certificates;
pub mod cli;
pub mod engine;
mod envoy;
mod front;
pub mod gateway;
pub mod health;
pub mod lease_metrics;
pub mod measured;
pub mod metrics;
pub mod path;
pub mod policy;
pub mod reload;
mod roots;
pub mod source;
pub mod store_metrics;
mod text_of_time;
pub mod trace;

pub use front::Front;
