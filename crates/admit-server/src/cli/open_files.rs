//! How many files and sockets the program may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The sockets of one client: its own, and one to the upstream.
const SOCKETS_OF_A_CLIENT: u64 = 2;
/// What else is open: the store, listeners, the clients of the admin listener.
const OTHERS: u64 = 1_200;

/// Raises what the program may have open to what that many connections need. Many shells and services start programs with
/// 1,024, half of which would be clients; an upstream to which no socket can be opened then looks as if it were away.
pub(super) fn allow_for(connections: usize) {
    let needed = (connections as u64).saturating_mul(SOCKETS_OF_A_CLIENT).saturating_add(OTHERS);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return;
    }
    let allowed = maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum });
    if raised.is_err() || allowed < needed {
        tracing::warn!(
            needed,
            allowed,
            connections,
            "fewer files may be open than connections need; see ulimit -n"
        );
    }
}
