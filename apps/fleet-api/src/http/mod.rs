//! What the three contexts' HTTP modules have in common: problem documents, authentication, bounded bodies.

pub mod authentication;
pub mod body;
pub mod correlation;
pub mod problem;
