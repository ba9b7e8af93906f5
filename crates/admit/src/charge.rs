//! One line of a take.

use crate::{Budget, Cost, Key, Scope};

/// Takes `cost` from the bucket (`scope`, `key`), which is held to `budget`.
#[derive(Clone, Debug, PartialEq)]
pub struct Charge {
    /// Which budget of the deployment the bucket belongs to.
    pub scope: Scope,
    /// Whose bucket it is.
    pub key: Key,
    /// What is taken.
    pub cost: Cost,
    /// What the bucket is held to in this take.
    pub budget: Budget,
}

impl Charge {
    /// A charge of one token.
    pub fn one(scope: Scope, key: Key, budget: Budget) -> Self {
        Self { scope, key, cost: Cost::ONE, budget }
    }
}
