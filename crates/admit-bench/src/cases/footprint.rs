//! Ten million buckets in memory, against a thousand.
#![allow(clippy::disallowed_methods)] // A bench reads the clock.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::runtime::Handle;

use crate::case::{Accuracy, Bar, Case, Measure, Peer, Promise, Side, Sides, Unit};
use crate::load::limiter::uniform;
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
    let start = |whose: &str, buckets: u64| {
        Ok(Box::new(Buckets(Part::start(&["buckets", whose, &buckets.to_string()])?)) as Box<dyn Side>)
    };
    let peers = vec![
        Peer::new("1,000 buckets", Some(Bar::AtMost(2.5)), start("admit", FEW)),
        Peer::new("governor", None, start("governor", MANY)),
        Peer::new("one read at random", None, Ok(Box::new(Reads::new()))),
    ];
    Ok(Sides { ours: start("admit", MANY)?, peers, servers: Box::new(()) })
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

/// Reads of as much memory as the buckets have, each of a cache line that the one before names: what a take cannot do without,
/// as it finds its bucket in no cache.
struct Reads(Vec<Line>);

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    next: u32,
}

impl Reads {
    const BYTES: usize = 52 * MANY as usize;
    const CHUNK: usize = 1_024;

    fn new() -> Self {
        let count = Self::BYTES / size_of::<Line>();
        let mut lines: Vec<Line> = (0..count as u32).map(|next| Line { next }).collect();
        // One cycle through all (Sattolo 1986).
        (1..count).rev().for_each(|line| {
            let other = uniform(line as u64, line);
            let next = lines[line].next;
            lines[line].next = std::mem::replace(&mut lines[other].next, next);
        });
        Self(lines)
    }
}

impl Side for Reads {
    fn run(&self, time: Duration) -> Result<Vec<f64>> {
        let (started, mut line, mut reads) = (Instant::now(), 0, 0);
        while started.elapsed() < time {
            (0..Self::CHUNK).for_each(|_| line = self.0[line].next as usize);
            reads += Self::CHUNK;
        }
        black_box(line);
        Ok(vec![started.elapsed().as_secs_f64() * 1e9 / reads as f64])
    }

    fn accuracy(&self) -> Result<Option<Accuracy>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reads_pass_all_lines_before_they_begin_anew() {
        let Reads(lines) = Reads::new();
        let mut seen = vec![false; lines.len()];
        let mut line = 0;
        while !std::mem::replace(&mut seen[line], true) {
            line = lines[line].next as usize;
        }
        assert!(seen.into_iter().all(|seen| seen));
    }
}
