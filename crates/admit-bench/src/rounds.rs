//! Runs the sides of a case in turns, so that whatever else the machine does falls on all of them.

use std::time::Duration;

use anyhow::{Error, Result};
use serde::Serialize;
use tokio::runtime::Handle;

use crate::case::{Accuracy, Bar, Case, Measure, Promise, Side};

/// How long and how often each side runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    /// A run before the first round, which is not counted.
    pub(crate) warm_up: Duration,
}

impl Plan {
    /// What the table is made by.
    pub(crate) const FULL: Self =
        Self { rounds: 5, time: Duration::from_secs(3), warm_up: Duration::from_secs(1) };
    /// Just enough to look at accuracy.
    pub(crate) const QUICK: Self =
        Self { rounds: 1, time: Duration::from_millis(500), warm_up: Duration::from_millis(100) };
}

/// What a case came to.
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) measures: &'static [Measure],
    pub(crate) promise: Promise,
    /// Or why not.
    pub(crate) measured: Result<Compared>,
}

pub(crate) struct Compared {
    pub(crate) ours: Measured,
    pub(crate) peers: Vec<PeerOutcome>,
}

pub(crate) struct PeerOutcome {
    pub(crate) name: String,
    pub(crate) bars: Vec<Option<Bar>>,
    /// Or why not.
    pub(crate) measured: Result<Measured>,
}

/// What one side came to.
#[derive(Debug)]
pub(crate) struct Measured {
    /// One for each measure.
    pub(crate) summaries: Vec<Summary>,
    pub(crate) accuracy: Option<Accuracy>,
}

/// The middle of some values, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl Summary {
    /// Of no values, there is none.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let middle = [values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?];
        let median = middle.into_iter().sum::<f64>() / 2.0;
        Some(Self { median, lowest: *values.first()?, highest: *values.last()? })
    }

    /// From the lowest to the highest, as a part of the median.
    pub(crate) fn spread(self) -> f64 {
        (self.highest - self.lowest) / self.median
    }
}

/// A side while it is measured. After its first failure it is left out.
struct Runner {
    side: Result<Box<dyn Side>>,
    values: Vec<Vec<f64>>,
}

impl Runner {
    fn new(side: Result<Box<dyn Side>>) -> Self {
        Self { side, values: Vec::new() }
    }

    fn run(&mut self, time: Duration, counts: bool) {
        let Ok(side) = &self.side else { return };
        match side.run(time) {
            Ok(values) if counts => self.values.push(values),
            Ok(_) => {}
            Err(error) => self.side = Err(error),
        }
    }

    fn finish(self) -> Result<Measured> {
        let accuracy = self.side?.accuracy()?;
        let measures = self.values.first().map_or(0, Vec::len);
        let of = |measure: usize| self.values.iter().map(|values| values[measure]).collect();
        let summaries = (0..measures).filter_map(|measure| Summary::of(of(measure))).collect();
        Ok(Measured { summaries, accuracy })
    }
}

/// Measures a case; `say` is told what is done next.
pub(crate) fn measure(case: &Case, plan: Plan, runtime: &Handle, say: impl Fn(&str)) -> Outcome {
    say("starting");
    let measured = compare(case, plan, runtime, say);
    Outcome { name: case.name.clone(), measures: case.measures, promise: case.promise, measured }
}

fn compare(case: &Case, plan: Plan, runtime: &Handle, say: impl Fn(&str)) -> Result<Compared> {
    let sides = (case.sides)(runtime)?;
    let mut ours = Runner::new(Ok(sides.ours));
    let (mut names, mut peers) = (Vec::new(), Vec::new());
    for peer in sides.peers {
        names.push((peer.name, peer.bars));
        peers.push(Runner::new(peer.side));
    }
    for round in 0..=plan.rounds {
        let (time, counts) = if round == 0 { (plan.warm_up, false) } else { (plan.time, true) };
        say(&if counts { format!("round {round} of {}", plan.rounds) } else { "warming up".to_owned() });
        ours.run(time, counts);
        peers.iter_mut().for_each(|peer| peer.run(time, counts));
    }
    say("counting what is admitted");
    let ours = ours.finish()?;
    let peers = names.into_iter().zip(peers).map(|((name, bars), peer)| {
        let measured = peer.finish();
        PeerOutcome { name, bars, measured }
    });
    let compared = Compared { ours, peers: peers.collect() };
    drop(sides.servers);
    Ok(compared)
}

impl Outcome {
    /// Why this may not pass: Admit could not be measured, or did not admit what it has to.
    pub(crate) fn failure(&self) -> Option<String> {
        let compared = match &self.measured {
            Ok(compared) => compared,
            Err(error) => return Some(format!("{}: {}", self.name, chain(error))),
        };
        let accuracy = compared.ours.accuracy?;
        let Accuracy { admitted, allowed } = accuracy;
        let broken = !self.promise.is_kept(accuracy);
        broken.then(|| format!("{}: {admitted} admitted, {allowed} allowed", self.name))
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &Error) -> String {
    format!("{error:#}").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(Summary::of(vec![]), None);
        let summary = Summary::of(vec![4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(summary, Summary { median: 2.5, lowest: 1.0, highest: 4.0 });
        assert_eq!(summary.spread(), 3.0 / 2.5);
        assert_eq!(Summary::of(vec![3.0, 1.0, 2.0]).unwrap().median, 2.0);
    }

    #[test]
    fn a_side_that_fails_later_is_not_measured() {
        struct Fails;
        impl Side for Fails {
            fn run(&self, time: Duration) -> Result<Vec<f64>> {
                if time.is_zero() { Ok(vec![1.0]) } else { Err(anyhow::anyhow!("gone")) }
            }
            fn accuracy(&self) -> Result<Option<Accuracy>> {
                Ok(None)
            }
        }
        let mut runner = Runner::new(Ok(Box::new(Fails)));
        runner.run(Duration::ZERO, true);
        runner.run(Duration::from_secs(1), true);
        runner.run(Duration::ZERO, true);
        assert_eq!(runner.finish().unwrap_err().to_string(), "gone");
    }
}
