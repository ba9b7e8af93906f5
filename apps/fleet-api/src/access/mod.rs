//! Access sessions: an operator gets a signed token that lets it reach a resource for a while.
//!
//! In this order: authenticate, find the project, read the body, find the resource, look the idempotency key up, take the
//! domain's issuance budget, claim the key, issue, record. A replay takes nothing from the budget.

mod issuing;
mod ledger;
mod limiter;
mod registry;
mod request;
mod session;
mod token;

pub mod http;
pub mod persistence;

pub use issuing::{Asker, IssueError, Issued, Issuer};
pub use ledger::{Claimed, Earlier, IdempotencyKey, IssuanceLedger, LedgerError, RunId};
pub use limiter::{IssuanceLimitError, IssuanceLimiter, IssuanceRefused};
pub use registry::{DomainPolicy, Registry, RegistryError};
pub use request::{RequestError, SessionRequest};
pub use session::{Kind, Session, Status, Target};
pub use token::{Signer, SignerError};
