//! Ten million buckets in memory, against a thousand.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::runtime::Handle;

use crate::case::{Accuracy, Bar, Case, Measure, Peer, Promise, Side, Sides, Unit};
use crate::part::Part;
use crate::part::buckets::{Answer, Order};

const MANY: u64 = 10_000_000;
const FEW: u64 = 1_000;

const MEASURES: &[Measure] = &[
    Measure::new("time a take", Unit::Nanoseconds),
    Measure { limit: Some(64.0), ..Measure::new("memory a bucket", Unit::Bytes) },
];

pub(super) fn case() -> Case {
    Case {
        name: "memory store, 10,000,000 buckets, 1 thread".to_owned(),
        measures: MEASURES,
        promise: Promise::Exact,
        quick: false,
        sides: Box::new(sides),
    }
}

fn sides(_: &Handle) -> Result<Sides> {
    let start = |buckets: u64| {
        Ok(Box::new(Buckets(Part::start(&["buckets", &buckets.to_string()])?)) as Box<dyn Side>)
    };
    let peers = vec![Peer::new("1,000 buckets", Some(Bar::AtMost(2.5)), start(FEW))];
    Ok(Sides { ours: start(MANY)?, peers, servers: Box::new(()) })
}

/// A process with so many buckets.
struct Buckets(Part);

impl Buckets {
    fn ask(&self, order: &Order) -> Result<Answer> {
        self.0.tell(order)?;
        self.0.answer()
    }
}

impl Side for Buckets {
    fn run(&self, time: Duration) -> Result<Vec<f64>> {
        match self.ask(&Order::Run { milliseconds: time.as_millis() as u64 })? {
            Answer::Ran { nanoseconds, bytes } => Ok(vec![nanoseconds, bytes]),
            Answer::Tallied(_) => bail!("an answer to another order"),
        }
    }

    fn accuracy(&self) -> Result<Option<Accuracy>> {
        match self.ask(&Order::Tally)? {
            Answer::Tallied(accuracy) => Ok(Some(accuracy)),
            Answer::Ran { .. } => bail!("an answer to another order"),
        }
    }
}
