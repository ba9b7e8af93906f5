//! Leases: that no more is granted than the law allows, whatever happens to processes, answers and clocks; and that no less is
//! than what they hold.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(all(feature = "leases", feature = "memory", feature = "conformance"))]

mod answers;
mod callers;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod crashes;
mod law;
#[cfg(feature = "postgres")]
mod replicas;
mod rolling;
mod suite;
mod unsure;

use admit::{Charge, Cost, Decision, Key, Scope};
use admit_store::conformance::{ALPHA, BETA};
use admit_store::leases::Leases;

/// `ALPHA` and `BETA`.
fn both(share: &str) -> Leases {
    Leases::new([ALPHA, BETA].map(|scope| (scope, share.parse().unwrap())))
}

fn charge(scope: Scope, key: &str, cost: f64, budget: &str) -> Charge {
    Charge { scope, key: Key::hashed(key), cost: Cost::new(cost).unwrap(), budget: budget.parse().unwrap() }
}

/// What is left by the first charge, if it was granted.
fn left(decision: &Decision) -> f64 {
    let Decision::Granted(grant) = decision else { panic!("{decision:?}") };
    grant.left[0].unwrap()
}
