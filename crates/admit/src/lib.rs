//! Decides which API requests may run.
//!
//! This crate is the pure part of Admit: the types, the token bucket law, the idempotency state machine and the
//! traits that stores implement. It does no I/O, holds no locks, and reads a clock only inside [`SystemClock`] and
//! [`MonotonicClock`]; every decision takes the moment it is made at as an argument.
//!
//! # The words
//!
//! A [`Budget`] is a [`Rate`] (tokens a second) and a [`Burst`] (the ceiling). A [`Bucket`] holds the tokens of one
//! ([`Scope`], [`Key`]). A [`Charge`] names a bucket, a [`Cost`] and the budget the bucket is held to; a *take* debits
//! all charges of a request, or none, and its [`Decision`] says which.
//!
//! # The law in five lines
//!
//! ```
//! use admit::{Bucket, Budget, Cost, Timestamp, Wait};
//!
//! let budget: Budget = "10/second".parse()?;
//! let noon = Timestamp::from_unix_micros(1_700_000_000_000_000)?;
//!
//! let empty = Bucket::full(budget, noon).debit(Cost::new(10.0)?, budget, noon).expect("a full bucket covers its burst");
//! assert_eq!(empty.debit(Cost::ONE, budget, noon), None);
//!
//! let wait = empty.wait(Cost::ONE, budget, noon);
//! assert_eq!(wait, Some(Wait::After(std::time::Duration::from_millis(100))));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Stores (in the `admit-store` crate) apply this law to buckets that many processes share; Tower layers (in
//! `admit-tower`) put a store in front of a service.

mod admission;
mod bucket;
mod budget;
mod burst;
mod causes;
mod charge;
mod clock;
mod cost;
mod decision;
mod few;
mod key;
mod rate;
mod retention;
mod rules;
mod scope;
mod single;
mod store;
mod take;
mod timestamp;
mod unavailable;

pub mod idempotency;

pub use admission::{AdmissionError, AdmissionStore, Verdict, one_by_one};
pub use bucket::{Bucket, Wait};
pub use budget::{Budget, BudgetError};
pub use burst::{Burst, BurstError};
pub use causes::Causes;
pub use charge::Charge;
pub use clock::{Clock, ManualClock, MonotonicClock, SystemClock, TimeSource};
pub use cost::{Cost, CostError};
pub use decision::{Decision, Grant, Refusal, Standing};
pub use few::{Few, FewIntoIter};
pub use key::Key;
pub use rate::{Rate, RateError};
pub use retention::{Retention, RetentionError};
pub use rules::{ChargeError, Rules};
pub use scope::{Scope, ScopeError, Scopes, ScopesError};
pub use single::Single;
pub use store::{BudgetStore, IdempotencyError, IdempotencyStore, Now, TakeError};
pub use take::{Line, MAX_CHARGES, Prepared, Take};
pub use timestamp::{Timestamp, TimestampError};
pub use unavailable::{Unavailable, UnavailableKind};
