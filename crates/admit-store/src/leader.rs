//! One process at a time does the work that one is enough for.

use std::future::Future;
use std::time::Duration;

use admit::{Now, Timestamp, Unavailable};

/// A store that grants a named leadership to one holder at a time.
///
/// By a lease, so that a holder that dies is replaced, and with a fence, so that what a former holder still does can be
/// told from what its successor does.
pub trait Leader: Clone + Send + Sync + 'static {
    /// Takes or keeps the leadership `name` for `holder`, until `lease` from now. Nothing if another holds it.
    ///
    /// The holder keeps its fence for as long as it comes back before its lease lapses; a leadership that changes hands,
    /// or that lapsed, gets a larger fence than all before it. A lease never gets shorter. `holder` is a text that no
    /// other process uses.
    ///
    /// # Errors
    /// [`Unavailable`] if the store failed.
    fn lead(
        &self,
        name: &str,
        holder: &str,
        lease: Duration,
        now: Now,
    ) -> impl Future<Output = Result<Option<Leadership>, Unavailable>> + Send;
}

/// A leadership that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// Grows with each change of hands.
    pub fence: i64,
    /// When it ends, unless the holder comes back before.
    pub lease_until: Timestamp,
}

/// A leadership as a store keeps it. The law of leases, for stores that decide outside of SQL.
#[cfg(any(feature = "memory", feature = "sqlite"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) holder: String,
    pub(crate) leadership: Leadership,
}

#[cfg(any(feature = "memory", feature = "sqlite"))]
impl Held {
    /// What becomes of a leadership when `holder` asks for it at `now`: what to write, or nothing if another has it.
    pub(crate) fn lead(
        existing: Option<&Self>,
        holder: &str,
        lease: Duration,
        now: Timestamp,
    ) -> Option<Self> {
        let until = now.saturating_add(lease);
        let leadership = match existing {
            None => Leadership { fence: 1, lease_until: until },
            Some(held) if now >= held.leadership.lease_until => {
                Leadership { fence: held.leadership.fence + 1, lease_until: until }
            }
            Some(held) if held.holder == holder => {
                Leadership { lease_until: until.max(held.leadership.lease_until), ..held.leadership }
            }
            Some(_) => return None,
        };
        Some(Self { holder: holder.to_owned(), leadership })
    }
}
