//! The memory store against the suite, and its bounds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(all(feature = "memory", feature = "conformance"))]

use admit::Rules;
use admit_store::memory::MemoryStore;

async fn fresh(rules: Rules) -> (MemoryStore, ()) {
    (MemoryStore::new(rules), ())
}

admit_store::conformance_tests!(fresh);
