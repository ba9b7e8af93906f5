//! Works out what a request is charged: from what the policy says, and from what the request has.
//!
//! Every front (gateway, forward-auth, Envoy) gathers the [`Facts`] of its requests and asks here, so that all of them
//! charge the same.

mod charging;
mod facts;

pub use charging::{Charging, Malformed, tenant};
pub use facts::Facts;
