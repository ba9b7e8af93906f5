//! What the tables take from elsewhere to be shared by threads. It stands apart so that a test can compile the same
//! tables on a scheduler that tries the orders in which threads may run.

pub(super) use foldhash::quality::RandomState;
pub(super) use std::sync::atomic::{AtomicUsize, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
