//! What the requests of a process take up at once.

use admit_tower::{ReadAhead, Runs};

/// What the requests of a process take up at once, whichever policy they came under. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Keyed requests that run, with or without a client that waits for them: 1,024 at the most.
    pub runs: Runs,
    /// Bodies of requests that nobody has let run yet, or that are held for their key: 256 MiB at the most.
    pub read_ahead: ReadAhead,
}
