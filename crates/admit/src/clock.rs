//! The only place that reads a clock of the machine.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::{Now, Timestamp};

/// Tells the time.
pub trait Clock: Send + Sync {
    /// The present moment.
    fn now(&self) -> Timestamp;
}

/// The machine's wall clock. It steps when the machine's time is set.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    /// A wall clock set outside of the years 1970 to 9999 reads as the nearer end of that range.
    #[allow(clippy::disallowed_methods)] // This is the clock.
    fn now(&self) -> Timestamp {
        let now = SystemTime::now();
        Timestamp::try_from(now).unwrap_or(if now < SystemTime::UNIX_EPOCH {
            Timestamp::MIN
        } else {
            Timestamp::MAX
        })
    }
}

/// The wall clock as it stood when this value was made, carried on by the machine's monotonic clock: a step of the
/// wall clock neither mints nor withholds tokens. For buckets that live and die with one process.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: Timestamp,
    started: Instant,
}

impl MonotonicClock {
    /// Starts at what [`SystemClock`] shows now.
    #[allow(clippy::disallowed_methods)] // This is the clock.
    pub fn start() -> Self {
        Self { origin: SystemClock.now(), started: Instant::now() }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Timestamp {
        self.origin.saturating_add(self.started.elapsed())
    }
}

/// A clock that moves only when told to. Clones share one time.
///
/// ```
/// use admit::{Clock, ManualClock, Timestamp};
/// use std::time::Duration;
///
/// let clock = ManualClock::at(Timestamp::MIN);
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now().unix_micros(), 3_600_000_000);
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(now.unix_micros())))
    }

    /// Moves the clock to `now`, forward or backward.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.unix_micros(), Ordering::SeqCst);
    }

    /// Moves the clock forward and returns what it shows then.
    pub fn advance(&self, by: Duration) -> Timestamp {
        let later = |micros| Some(moment(micros).saturating_add(by).unix_micros());
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later); // Never declines.
        self.now()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        moment(self.0.load(Ordering::SeqCst))
    }
}

/// What a manual clock shows. It holds only what once was a timestamp.
fn moment(micros: i64) -> Timestamp {
    Timestamp::from_unix_micros(micros).unwrap_or(Timestamp::MIN)
}

/// Where a caller of a store takes the time from.
#[derive(Clone, Default)]
pub enum TimeSource {
    /// The store decides: one clock for all replicas. What a deployment uses.
    #[default]
    Store,
    /// A clock in the caller's hand, for tests and simulations.
    Clock(Arc<dyn Clock>),
}

impl TimeSource {
    /// What to pass to a store now.
    pub fn now(&self) -> Now {
        match self {
            Self::Store => Now::Store,
            Self::Clock(clock) => Now::At(clock.now()),
        }
    }
}

impl fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Store => "Store",
            Self::Clock(_) => "Clock",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_starts_at_the_wall_clock_and_never_falls() {
        let clock = MonotonicClock::start();
        let first = clock.now();
        assert!(SystemClock.now().since(first) < Duration::from_secs(60));
        assert!(clock.now() >= first);
    }
}
