//! The `admit` program as a library: the policy file, and the fronts that decide by it.

pub mod engine;
pub mod policy;
