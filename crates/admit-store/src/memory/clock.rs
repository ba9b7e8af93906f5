//! The clock of a store in memory.
//!
//! A take costs less than asking the operating system for the time. So the system's monotonic clock is read a thousand
//! times a second in each thread, and in between the counter that the processor has for it is added.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::Duration;

use admit::{Clock, MonotonicClock, Timestamp};

/// How long the counter is trusted after a reading of the system's clock. A counter that runs at another speed than was
/// measured, as on a virtual machine that was moved, or that differs between processors, is wrong by no more than this.
const TRUSTED: Duration = Duration::from_millis(1);

/// How far the readings of two threads may be apart: what the counter may be wrong by, twice.
const APART: Duration = Duration::from_millis(2);

/// A reading of the system's clock is paired with one of the counter unless it took longer than this: the thread was
/// interrupted, and nobody can tell where.
const QUICK: Duration = Duration::from_micros(10);

/// The clock of a store: its own, or one that it was given.
pub(super) enum StoreClock {
    Counter(CounterClock),
    Given(Box<dyn Clock>),
}

impl StoreClock {
    #[inline]
    pub(super) fn now(&self) -> Timestamp {
        match self {
            Self::Counter(clock) => clock.now(),
            Self::Given(clock) => clock.now(),
        }
    }

    /// A moment that is past by the readings of all threads.
    pub(super) fn surely_past(&self) -> Timestamp {
        match self {
            Self::Counter(clock) => clock.now().saturating_sub(APART),
            Self::Given(clock) => clock.now(),
        }
    }
}

/// The system's monotonic clock, carried on by the processor's counter. In one thread it never goes back.
#[derive(Clone, Copy)]
pub(super) struct CounterClock(&'static Source);

struct Source {
    system: MonotonicClock,
    counter: quanta::Clock,
    /// What the counter counts in [`TRUSTED`].
    trusted_counts: u64,
    /// As a fixed-point number: no division for a reading.
    micros_per_count: u64,
}

/// One for all stores of the process, as each thread has but one anchor. The first to ask for it measures the speed of the
/// counter, once for the process and for up to 200 ms, unless the processor tells it.
static SOURCE: OnceLock<Source> = OnceLock::new();

thread_local! {
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor::NONE) };
}

/// How many bits of [`Source::micros_per_count`] are behind its point.
const FRACTION: u32 = 40;

/// When the system's clock was read, and what the counter showed then.
#[derive(Clone, Copy)]
struct Anchor {
    count: u64,
    at: Timestamp,
    /// The latest time that was told, which may be ahead of a later reading by what the counter is wrong.
    told: Timestamp,
}

impl Anchor {
    /// Half of all counts away from those there are, so the first reading is one of the system's clock.
    const NONE: Self = Self { count: 1 << 63, at: Timestamp::MIN, told: Timestamp::MIN };
}

impl Source {
    fn new() -> Self {
        let counter = quanta::Clock::new();
        let nanos = counter.delta_as_nanos(0, 1 << FRACTION).max(1); // Of so many counts: minutes, if not hours.
        Self {
            system: MonotonicClock::start(),
            counter,
            trusted_counts: ((TRUSTED.as_nanos() << FRACTION) / u128::from(nanos)) as u64,
            micros_per_count: nanos / 1_000,
        }
    }
}

impl CounterClock {
    pub(super) fn start() -> Self {
        Self(SOURCE.get_or_init(Source::new))
    }

    /// Reads the system's clock, and sets the anchor to it if that was quick.
    #[cold]
    fn anchored(&self, anchor: &mut Anchor) -> Timestamp {
        let Source { system, counter, .. } = self.0;
        let before = counter.raw();
        let at = system.now();
        let count = counter.raw();
        if counter.delta(before, count) <= QUICK {
            (anchor.count, anchor.at) = (count, at);
        }
        at
    }
}

impl Clock for CounterClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let Source { counter, trusted_counts, micros_per_count, .. } = self.0;
        let count = counter.raw();
        ANCHOR.with(|cell| {
            let mut anchor = cell.get();
            let since = count.wrapping_sub(anchor.count); // Much, if the counter went back.
            let now = if since <= *trusted_counts {
                let micros = (since * micros_per_count) >> FRACTION;
                Timestamp::from_unix_micros(anchor.at.unix_micros() + micros as i64).unwrap_or(Timestamp::MAX)
            } else {
                self.anchored(&mut anchor)
            };
            anchor.told = anchor.told.max(now);
            cell.set(anchor);
            anchor.told
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_systems_clock_and_never_goes_back() {
        let clock = CounterClock::start();
        let mut last = clock.now();
        let end = clock.0.system.now().saturating_add(Duration::from_millis(20));
        loop {
            let before = clock.0.system.now();
            let now = clock.now();
            let after = clock.0.system.now();
            assert!(now >= last, "{now} after {last}");
            assert!(
                now.saturating_add(APART) >= before && now <= after.saturating_add(APART),
                "{before} {now} {after}"
            );
            last = now;
            if after >= end {
                break;
            }
        }
    }
}
