//! What the three contexts' HTTP modules have in common: problem documents, authentication, strict JSON, bounded bodies.

pub mod authentication;
pub mod body;
pub mod correlation;
pub mod json;
pub mod problem;
