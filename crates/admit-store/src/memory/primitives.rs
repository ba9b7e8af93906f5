//! What the tables take from elsewhere to be shared by threads. It stands apart so that a test can compile the same
//! tables on a scheduler that tries the orders in which threads may run.

pub(super) use foldhash::fast::RandomState;
pub(super) use std::sync::atomic::{AtomicUsize, Ordering};

use std::hint::spin_loop;
use std::thread::yield_now;

use spinning_top::{RawSpinlock, relax::Relax};

/// A lock that is given back by a plain store, where one that lets threads sleep needs an atomic exchange to see whether any
/// does; and those that wait do not write to its cache line. It is held for some 20 ns; for as long as a
/// take, where a record is claimed with it; and for up to milliseconds by a sweep and where a shard grows. What is large is
/// copied outside of it.
pub(super) type Lock<T> = spinning_top::lock_api::Mutex<RawSpinlock<Patience>, T>;
pub(super) type Guard<'a, T> = spinning_top::lock_api::MutexGuard<'a, RawSpinlock<Patience>, T>;

#[inline]
pub(super) fn lock<T>(of: &Lock<T>) -> Guard<'_, T> {
    of.lock()
}

/// How often a thread that waits looks, each time after twice as long, before it lets others run.
const LOOKS: u32 = 10;

/// How a thread waits for a lock.
#[derive(Default)]
pub(super) struct Patience(u32);

impl Relax for Patience {
    fn relax(&mut self) {
        if self.0 < LOOKS {
            (0..1_u32 << self.0).for_each(|_| spin_loop());
            self.0 += 1;
        } else {
            yield_now(); // Who holds the lock may be waiting for a processor.
        }
    }
}

/// Enough that a few dozen threads seldom meet on one lock.
pub(super) const SHARDS: usize = 64;
