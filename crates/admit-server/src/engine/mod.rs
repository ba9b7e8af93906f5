//! Works out what a request is charged: from what the policy says, and from what the request has.
//!
//! Every front (gateway, forward-auth, decision API, Envoy) gathers the [`Facts`] of its requests and asks here, so that all of them
//! charge the same.

mod charges;
mod charging;
mod decider;
mod facts;
mod key;
mod named;
mod shadows;

pub use charges::Charges;
pub use charging::{Charging, Malformed, tenant};
pub use decider::{Decider, Store};
pub use facts::Facts;
pub(crate) use key::of_text;
pub use named::{Named, NamedError, named_bucket};
pub use shadows::Debited;
