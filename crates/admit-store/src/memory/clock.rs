//! The clock of a store in memory.
//!
//! A take costs less than asking the operating system for the time. So the system's monotonic clock is read a thousand
//! times a second in each thread, and in between the counter that the processor has for it is added.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::Duration;

use admit::{Clock, MonotonicClock, Timestamp};

/// How long the counter is trusted after a reading of the system's clock: a millisecond. A counter that runs at another speed than was
/// measured, as on a virtual machine that was moved, or that differs between processors, is wrong by no more than this.
const TRUSTED_NANOS: u64 = 1_000_000;

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
}

/// One for all stores of the process, as each thread has but one anchor.
static SOURCE: OnceLock<Source> = OnceLock::new();

thread_local! {
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor::NONE) };
}

/// When the system's clock was read, and what the counter showed then.
#[derive(Clone, Copy)]
struct Anchor {
    count: u64,
    at: Timestamp,
    /// The latest time that was told, which may be ahead of a later reading by what the counter is wrong.
    told: Timestamp,
}

impl Anchor {
    /// No count is above this one, so the first reading is one of the system's clock.
    const NONE: Self = Self { count: u64::MAX, at: Timestamp::MIN, told: Timestamp::MIN };
}

impl CounterClock {
    pub(super) fn start() -> Self {
        let source = || Source { system: MonotonicClock::start(), counter: quanta::Clock::new() };
        Self(SOURCE.get_or_init(source))
    }

    /// Reads the system's clock, and sets the anchor to it if that was quick.
    #[cold]
    fn anchored(&self, anchor: &mut Anchor) -> Timestamp {
        let Source { system, counter } = self.0;
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
        let count = self.0.counter.raw();
        let mut anchor = ANCHOR.get();
        let since = self.0.counter.delta_as_nanos(anchor.count, count);
        let now = if count >= anchor.count && since <= TRUSTED_NANOS {
            let micros = anchor.at.unix_micros() + (since / 1_000) as i64;
            Timestamp::from_unix_micros(micros).unwrap_or(Timestamp::MAX)
        } else {
            self.anchored(&mut anchor)
        };
        anchor.told = anchor.told.max(now);
        ANCHOR.set(anchor);
        anchor.told
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
