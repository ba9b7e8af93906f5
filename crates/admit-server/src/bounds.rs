//! What the requests of a process take up at once.

use admit_tower::Runs;

/// What the requests of a process take up at once, whichever policy they came under. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Keyed requests that run, with or without a client that waits for them: 1,024 at the most.
    pub runs: Runs,
}
