//! All orders in which callers of one bucket can meet, tried one after the other. The very file that says what is held is
//! compiled here; a caller waits on a latch of the scheduler's that tries the orders, and is woken by nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(dead_code, unreachable_pub)] // The files hold more than is used here.
#![cfg(feature = "leases")]

#[path = "../src/leases/demand.rs"]
mod demand;
#[path = "../src/leases/holding.rs"]
mod holding;
#[path = "../src/leases/slice.rs"]
mod slice;

/// In the place of the leases' own.
mod latch {
    use admit::Timestamp;
    use loom::sync::{Arc, Condvar, Mutex};

    #[derive(Clone, Debug)]
    pub(super) struct Latch(Arc<(Mutex<bool>, Condvar)>);

    impl Latch {
        pub(super) fn new(_: Timestamp) -> Self {
            Self(Arc::new((Mutex::new(false), Condvar::new())))
        }

        pub(super) fn is_expected(&self, _: Timestamp) -> bool {
            true
        }

        pub(super) fn open(&self) {
            let (is_open, opened) = &*self.0;
            *is_open.lock().unwrap() = true;
            opened.notify_all();
        }

        pub(super) fn wait(&self) {
            let (is_open, opened) = &*self.0;
            let mut guard = is_open.lock().unwrap();
            while !*guard {
                guard = opened.wait(guard).unwrap();
            }
        }
    }
}

use std::time::Duration;

use admit::{Budget, Timestamp};
use holding::{Ask, Begun, Effort, Holding, Moment};
use loom::sync::{Arc, Mutex};
use loom::thread;

const NOW: Moment = Moment { at: Timestamp::MIN, given: true };

/// What may be held at the most.
const MOST: f64 = 3.0;

struct Place {
    holding: Mutex<Holding>,
    /// What the store has.
    level: Mutex<f64>,
}

#[derive(Clone, Copy, PartialEq)]
enum Caller {
    Stays,
    /// Is no longer there when the answer comes.
    Leaves,
    /// Has no answer, though the store debited.
    HasNoAnswer,
}

fn budget() -> Budget {
    "20/hour".parse().unwrap()
}

impl Place {
    /// A bucket that was asked for so often that the next ask is for a slice.
    fn warm(told: f64, level: f64) -> Self {
        let mut holding = Holding::new(0, budget(), NOW);
        let Begun::Ask(first) = holding.begin(1.0, budget(), NOW, MOST, Effort::Wait) else { panic!() };
        assert!(!first.is_slice());
        holding.land(&first, told, NOW.at, NOW.at);
        Self { holding: Mutex::new(holding), level: Mutex::new(level) }
    }

    /// What a take does, and whether it was granted.
    fn take(&self, caller: Caller) -> bool {
        let ask = loop {
            let begun = {
                let mut holding = self.holding.lock().unwrap();
                if holding.spend(1.0, budget(), NOW).is_some() {
                    return true;
                }
                holding.begin(1.0, budget(), NOW, MOST, Effort::Wait)
            };
            match begun {
                Begun::Ask(ask) => break ask,
                Begun::Wait(flight) => flight.wait(),
            }
        };
        if let Some(left) = self.debit(ask.amount()) {
            return self.landed(&ask, left, caller);
        }
        self.change(|holding| holding.refused(&ask, None, true));
        let again = ask.is_slice().then(|| self.debit(ask.cost)).flatten();
        again.is_some_and(|left| self.landed(&ask.alone(), left, caller))
    }

    fn landed(&self, ask: &Ask, left: f64, caller: Caller) -> bool {
        match caller {
            Caller::HasNoAnswer => self.change(|holding| holding.abandoned(ask, true)),
            _ => self.change(|holding| holding.land(ask, left, NOW.at, NOW.at)),
        }
        if caller == Caller::Leaves {
            self.change(|holding| holding.give(ask.cost, budget(), NOW.at));
        }
        caller == Caller::Stays
    }

    fn debit(&self, amount: f64) -> Option<f64> {
        let mut level = self.level.lock().unwrap();
        (*level >= amount).then(|| {
            *level -= amount;
            *level
        })
    }

    fn change(&self, change: impl FnOnce(&mut Holding)) {
        change(&mut self.holding.lock().unwrap());
    }
}

/// What was granted to all callers, what is held, lapsed, and in the store after that. The bucket was `told` to hold so much, and
/// holds `level`.
fn meet(told: f64, level: f64, callers: [Caller; 3], check: impl Fn([f64; 4]) + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_duration = Some(Duration::from_secs(120));
    builder.check(move || {
        let place = Arc::new(Place::warm(told, level));
        let [first, others @ ..] = callers;
        let others = others.map(|caller| {
            let place = place.clone();
            thread::spawn(move || place.take(caller))
        });
        let mut granted = u8::from(place.take(first));
        granted += others.map(|other| u8::from(other.join().unwrap())).iter().sum::<u8>();
        let mut holding = place.holding.lock().unwrap();
        let (held, lapsed) = (holding.held(NOW.at), holding.take_lapsed());
        check([f64::from(granted), held, lapsed, *place.level.lock().unwrap()]);
    });
}

#[test]
fn callers_of_one_bucket_get_what_is_there_and_nothing_is_lost() {
    meet(9.0, 9.0, [Caller::Stays; 3], |[granted, held, lapsed, left]| {
        assert_eq!((granted, lapsed, granted + held + left), (3.0, 0.0, 9.0));
    });
}

#[test]
fn callers_of_a_drained_bucket_get_no_more_than_is_there() {
    meet(9.0, 2.0, [Caller::Stays; 3], |[granted, held, lapsed, left]| {
        assert_eq!((granted, granted + held + lapsed + left), (2.0, 2.0));
    });
}

#[test]
fn a_caller_that_leaves_strands_neither_the_others_nor_the_slice() {
    meet(9.0, 9.0, [Caller::Leaves, Caller::Stays, Caller::Stays], |[granted, held, lapsed, left]| {
        // Three where the first to leave had its token from what is held.
        assert!(granted >= 2.0 && granted + held + lapsed + left == 9.0);
    });
}

#[test]
fn a_slice_without_an_answer_is_lost_and_the_others_go_on() {
    meet(9.0, 9.0, [Caller::HasNoAnswer, Caller::Stays, Caller::Stays], |[granted, held, lapsed, left]| {
        assert!(granted >= 2.0 && granted + held + lapsed + left <= 9.0);
    });
}
