//! All orders in which callers of one bucket can meet, tried one after the other.

use std::time::Duration;

use admit::{Budget, Timestamp};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::holding::{Ask, Begun, Holding, Moment};

const NOW: Moment = Moment { at: Timestamp::MIN, given: true };

/// What may be held at the most.
const MOST: f64 = 3.0;

struct Place {
    holding: Mutex<Holding>,
    changed: Condvar,
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
        let Begun::Ask(first) = holding.begin(1.0, budget(), NOW, MOST, true) else { panic!() };
        assert!(!first.is_slice());
        holding.land(&first, told, NOW.at, NOW.at);
        Self { holding: Mutex::new(holding), changed: Condvar::new(), level: Mutex::new(level) }
    }

    /// What [`Leased::take`](super::Leased) does, and whether it was granted.
    fn take(&self, caller: Caller) -> bool {
        let ask = {
            let mut holding = self.holding.lock().unwrap();
            loop {
                match holding.begin(1.0, budget(), NOW, MOST, true) {
                    Begun::Spent(_) => return true,
                    Begun::Ask(ask) => break ask,
                    Begun::Wait(_) => holding = self.changed.wait(holding).unwrap(),
                }
            }
        };
        if ask.is_slice() {
            match self.debit(ask.amount) {
                Some(left) => return self.landed(&ask, left, caller),
                None => self.change(|holding| holding.refused(&ask, None)),
            }
        }
        match self.debit(ask.shortage) {
            Some(left) => self.landed(&ask.alone(), left, caller),
            None => {
                self.change(|holding| holding.give(ask.reserved, budget(), NOW.at));
                false
            }
        }
    }

    fn landed(&self, ask: &Ask, left: f64, caller: Caller) -> bool {
        match caller {
            Caller::HasNoAnswer => self.change(|holding| {
                holding.abandoned(ask, true);
                holding.give(ask.reserved, budget(), NOW.at);
            }),
            _ => self.change(|holding| holding.land(ask, left, NOW.at, NOW.at)),
        }
        if caller == Caller::Leaves {
            self.change(|holding| holding.give(ask.reserved + ask.shortage, budget(), NOW.at));
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
        self.changed.notify_all();
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
