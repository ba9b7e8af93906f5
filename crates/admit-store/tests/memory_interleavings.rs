//! The buckets of the memory store under the orders in which threads may run. The very files of the store are compiled
//! here with the locks and atomics of a scheduler that tries many orders, at random and by a search for rare ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(dead_code, unreachable_pub)] // The files hold more than is used here.
#![cfg(all(feature = "memory", feature = "conformance"))]

/// In the place of the store's own.
mod primitives {
    /// Without a random seed, so that an order which fails can be tried again.
    pub(super) use foldhash::fast::FixedState as RandomState;
    pub(super) use shuttle::sync::atomic::{AtomicUsize, Ordering};
    pub(super) use shuttle::sync::{Mutex as Lock, MutexGuard as Guard};

    /// Few, so that there are few orders.
    pub(super) const SHARDS: usize = 2;

    pub(super) fn lock<T>(of: &Lock<T>) -> Guard<'_, T> {
        of.lock().unwrap()
    }
}

#[path = "../src/memory/buckets.rs"]
mod buckets;
#[path = "../src/memory/full.rs"]
mod full;
#[path = "../src/memory/kept.rs"]
mod kept;
#[path = "../src/memory/scopes.rs"]
mod scopes;
#[path = "../src/memory/slots.rs"]
mod slots;
#[path = "../src/memory/table.rs"]
mod table;

use admit::{Charge, Cost, Decision, Key, Prepared, Rules, Scope, TakeError, Timestamp, Unavailable};
use buckets::{Buckets, Moment};
use scopes::{Numbered, ScopeNumbers};
use shuttle::Runner;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;
use std::time::Duration;

const SCOPE: Scope = Scope::from_static("a");
const RETENTION: Duration = Duration::from_secs(3_600);
const ORDERS: usize = 2_000;
/// Of each thread. A table is made on it.
const STACK_BYTES: usize = 1 << 18;

/// A store and its clock. What is granted is held to one budget of 2 tokens, one of them each second.
#[derive(Clone)]
struct Store(Arc<(Buckets, Numbered, Clock)>);

/// Shows whole seconds. Each reading is a point at which other threads may run, and two may be as far apart as is said.
struct Clock {
    seconds: AtomicU64,
    apart: AtomicU64,
}

impl Moment for Clock {
    fn now(&self) -> Timestamp {
        let ahead = shuttle::rand::Rng::gen_range(&mut shuttle::rand::thread_rng(), 0..=self.apart());
        Timestamp::MIN.saturating_add(Duration::from_secs(self.seconds.load(Ordering::SeqCst) + ahead))
    }

    fn surely_past(&self) -> Timestamp {
        self.now().saturating_sub(Duration::from_secs(self.apart()))
    }
}

impl Clock {
    fn apart(&self) -> u64 {
        self.apart.load(Ordering::SeqCst)
    }
}

impl Store {
    fn new(max: usize) -> Self {
        let numbered = ScopeNumbers::default().number(Rules::new([SCOPE]).unwrap()).unwrap();
        Self(Arc::new((
            Buckets::new(max),
            numbered,
            Clock { seconds: AtomicU64::new(0), apart: AtomicU64::new(0) },
        )))
    }

    /// When one token of each key's bucket was granted, if it was.
    fn granted_at(&self, keys: &[u8]) -> Result<Option<Timestamp>, Unavailable> {
        let (buckets, numbered, clock) = &*self.0;
        let charges: Vec<Charge> = keys.iter().map(|&key| charge(key, Cost::ONE)).collect();
        let decision = match numbered.rules.single(&charges) {
            Some(single) => match buckets.take_single(numbered, || RETENTION, &single, clock) {
                Ok(decision) => decision,
                Err(TakeError::Unavailable(cause)) => return Err(cause),
                Err(TakeError::Charge(error)) => panic!("{error}"),
            },
            None => {
                let Prepared::Ask(take) = numbered.rules.prepare(&charges).unwrap() else { panic!() };
                buckets.take(numbered, RETENTION, &take, clock)?
            }
        };
        match decision {
            Decision::Granted(grant) => Ok(grant.at),
            Decision::Refused(_) => Ok(None),
        }
    }

    fn take(&self, keys: &[u8]) -> Result<bool, Unavailable> {
        Ok(self.granted_at(keys)?.is_some())
    }

    fn grants(&self, keys: &[u8]) -> u32 {
        self.take(keys).unwrap().into()
    }

    fn refund(&self, key: u8) {
        let (buckets, numbered, _) = &*self.0;
        buckets.refund(numbered, &numbered.rules.prepare_refund(&[charge(key, Cost::ONE)]).unwrap()).unwrap();
    }

    fn second_passes(&self) {
        self.0.2.seconds.fetch_add(1, Ordering::SeqCst);
    }

    fn spawn<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let store = self.clone();
        thread::spawn(move || run(&store))
    }
}

fn charge(key: u8, cost: Cost) -> Charge {
    Charge { cost, ..Charge::one(SCOPE, Key::from_bytes([key; 16]), "1/second burst 2".parse().unwrap()) }
}

/// In orders at random, and in those that few switches at the wrong places make.
fn in_many_orders(run: fn()) {
    let mut config = shuttle::Config::new();
    config.stack_size = STACK_BYTES;
    Runner::new(RandomScheduler::new(ORDERS), config.clone()).run(run);
    Runner::new(PctScheduler::new(3, ORDERS), config).run(run);
}

#[test]
fn three_takes_from_a_bucket_of_two_are_two_grants() {
    in_many_orders(|| {
        let store = Store::new(10);
        let takes = [0; 3].map(|_| store.spawn(|store| store.grants(&[1])));
        assert_eq!(takes.map(|take| take.join().unwrap()).iter().sum::<u32>(), 2);
    });
}

#[test]
fn takes_of_two_buckets_in_either_order_wait_for_no_other_and_debit_both_or_none() {
    in_many_orders(|| {
        let store = Store::new(10);
        let both = store.spawn(|store| store.grants(&[1, 2]));
        let back = store.spawn(|store| store.grants(&[2, 1]));
        let one = store.spawn(|store| store.grants(&[1]));
        let both = both.join().unwrap() + back.join().unwrap();
        let one = one.join().unwrap();
        assert_eq!(both + one, 2, "of the first bucket");
        let left = [1, 2, 3].iter().map(|_| store.grants(&[2])).sum::<u32>();
        assert_eq!(both + left, 2, "of the second bucket");
    });
}

#[test]
fn what_is_given_back_is_granted_once() {
    in_many_orders(|| {
        let store = Store::new(10);
        assert_eq!(store.grants(&[1]), 1);
        let refund = store.spawn(|store| store.refund(1));
        let takes = [0; 2].map(|_| store.spawn(|store| store.grants(&[1])));
        refund.join().unwrap();
        let taken = takes.map(|take| take.join().unwrap()).iter().sum::<u32>();
        let left = [1, 2].iter().map(|_| store.grants(&[1])).sum::<u32>();
        assert_eq!(1 + taken + left, 3, "two, and the one that came back");
    });
}

/// A bucket dropped by one take at a moment after that by which another mints it anew would grant what was spent. The
/// readings of two threads may be apart.
#[test]
fn dropping_a_bucket_that_is_full_again_mints_nothing() {
    in_many_orders(|| {
        let store = Store::new(2);
        // Full again after two seconds, and after one.
        assert_eq!(store.grants(&[1]) + store.grants(&[1]) + store.grants(&[2]), 3);
        store.0.2.apart.store(1, Ordering::SeqCst);
        let clock = store.spawn(|store| (0..3).for_each(|_| store.second_passes()));
        let other = store.spawn(|store| store.take(&[3]).is_ok()); // Drops those that are full.
        let takes = [0; 2].map(|_| store.spawn(|store| store.granted_at(&[1]).ok().flatten()));
        let granted = takes.map(|take| take.join().unwrap());
        for second in 0..=3 {
            let until = granted.iter().flatten().filter(|at| at.unix_micros() <= second * 1_000_000).count();
            assert!(until as i64 <= second, "{until} after the first two, in {second} s");
        }
        clock.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
fn there_are_never_more_buckets_than_the_bound_and_none_is_lost() {
    in_many_orders(|| {
        let store = Store::new(2);
        let takes = [1, 2, 3].map(|key| store.spawn(move |store| store.take(&[key]).is_ok()));
        let there = takes.map(|take| take.join().unwrap()).iter().filter(|&&there| there).count();
        assert_eq!((there, store.0.0.len()), (2, 2), "the third finds no room");
    });
}
