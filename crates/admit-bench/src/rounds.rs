//! Runs the sides of a case in turns, so that whatever else the machine does falls on all of them.

use std::time::Duration;

use anyhow::{Context, Error, Result};
use serde::Serialize;
use tokio::runtime::Handle;

use crate::case::{Accuracy, Bar, Case, Measure, Missing, Promise, Side};
use crate::postgres;

/// How long and how often each side runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// How many rounds a peer without a bar takes part in.
    pub(crate) rounds_without_bar: usize,
    pub(crate) time: Duration,
    /// A run before the first round, which is not counted.
    pub(crate) warm_up: Duration,
}

impl Plan {
    /// What the table is made by: with some fifty sides nine minutes of load.
    pub(crate) const FULL: Self = Self {
        rounds: 5,
        rounds_without_bar: 3,
        time: Duration::from_secs(2),
        warm_up: Duration::from_secs(1),
    };
    /// Just enough to look at accuracy.
    pub(crate) const QUICK: Self = Self {
        rounds: 1,
        rounds_without_bar: 1,
        time: Duration::from_millis(500),
        warm_up: Duration::from_millis(100),
    };
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
    /// Of Admit's values to the peer's, each of one round: one for each measure.
    pub(crate) ratios: Vec<Summary>,
}

/// What one side came to.
#[derive(Debug)]
pub(crate) struct Measured {
    /// One for each measure.
    pub(crate) summaries: Vec<Summary>,
    /// Or why it could not be counted.
    pub(crate) accuracy: Result<Option<Accuracy>>,
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
    /// Of each round.
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
        let accuracy = self.side?.accuracy();
        Ok(Measured { summaries: summaries(&self.values), accuracy })
    }
}

/// A summary for each measure of what rounds gave.
fn summaries(rounds: &[Vec<f64>]) -> Vec<Summary> {
    let measures = rounds.first().map_or(0, Vec::len);
    let of = |measure: usize| rounds.iter().map(|values| values[measure]).collect();
    (0..measures).filter_map(|measure| Summary::of(of(measure))).collect()
}

/// What the machine did in a round falls on both sides of it, so that a ratio is of one round.
fn ratios(ours: &[Vec<f64>], theirs: &[Vec<f64>]) -> Vec<Summary> {
    let of_round = |(ours, theirs): (&Vec<f64>, &Vec<f64>)| {
        ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
    };
    summaries(&ours.iter().zip(theirs).map(of_round).collect::<Vec<_>>())
}

/// Measures a case; `say` is told what is done next.
pub(crate) fn measure(case: &Case, plan: Plan, runtime: &Handle, say: impl Fn(&str)) -> Outcome {
    say("starting");
    let measured = compare(case, plan, runtime, say);
    Outcome { name: case.name.clone(), measures: case.measures, promise: case.promise, measured }
}

fn compare(case: &Case, plan: Plan, runtime: &Handle, say: impl Fn(&str)) -> Result<Compared> {
    let sides = (case.sides)(runtime)?;
    // Ours is the first, and has a bar.
    let mut runners = vec![(Runner::new(Ok(sides.ours)), plan.rounds)];
    let mut names = Vec::new();
    for peer in sides.peers {
        let has_bar = peer.bars.iter().any(Option::is_some);
        let rounds = if has_bar { plan.rounds } else { plan.rounds_without_bar };
        runners.push((Runner::new(peer.side), rounds));
        names.push((peer.name, peer.bars));
    }
    for round in 0..=plan.rounds {
        let (time, counts) = if round == 0 { (plan.warm_up, false) } else { (plan.time, true) };
        say(&if counts { format!("round {round} of {}", plan.rounds) } else { "warming up".to_owned() });
        let mut turn: Vec<_> = runners.iter_mut().filter(|(_, rounds)| round <= *rounds).collect();
        // So that no side always has what another one left behind.
        if round % 2 == 0 {
            turn.reverse();
        }
        for (runner, _) in turn {
            postgres::settle(&*sides.servers)?;
            runner.run(time, counts);
        }
    }
    say("counting what is admitted");
    let mut runners = runners.into_iter().map(|(runner, _)| runner);
    let ours = runners.next().context("a case without Admit")?;
    let our_values = ours.values.clone();
    let ours = ours.finish()?;
    let peers = names.into_iter().zip(runners).map(|((name, bars), peer)| {
        let ratios = ratios(&our_values, &peer.values);
        PeerOutcome { name, bars, measured: peer.finish(), ratios }
    });
    let compared = Compared { ours, peers: peers.collect() };
    drop(sides.servers);
    Ok(compared)
}

impl Outcome {
    /// Why this may not pass: Admit could not be measured, or did not admit what it has to. Where a program is missing
    /// nothing is known of Admit, and that is no failure.
    pub(crate) fn failure(&self) -> Option<String> {
        let accuracy = self.measured.as_ref().and_then(|compared| compared.ours.accuracy.as_ref());
        let accuracy = match accuracy {
            Ok(accuracy) => (*accuracy)?,
            Err(error) if error.is::<Missing>() => return None,
            Err(error) => return Some(format!("{}: {}", self.name, chain(error))),
        };
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

    /// The ratio of two medians is of two rounds, in which the machine may have done different things.
    #[test]
    fn a_ratio_is_of_one_round() {
        let rounds = |values: [f64; 3]| values.map(|value| vec![value]);
        let found = ratios(&rounds([10.0, 40.0, 90.0]), &rounds([10.0, 20.0, 10.0]));
        assert_eq!(found, [Summary { median: 2.0, lowest: 1.0, highest: 9.0 }]);
    }

    /// Without wrk or h2load the whole command failed, as if Admit had.
    #[test]
    fn a_program_that_is_missing_is_no_failure_of_admit() {
        let outcome = |error: Error| Outcome {
            name: "case".to_owned(),
            measures: &[],
            promise: Promise::Exact,
            measured: Err(error.context("while it ran")),
        };
        assert_eq!(outcome(Missing("wrk").into()).failure(), None);
        assert_eq!(outcome(anyhow::anyhow!("gone")).failure().unwrap(), "case: while it ran: gone");
    }

    /// The speed of a peer was lost with its accuracy.
    #[test]
    fn a_side_that_cannot_be_counted_keeps_its_values() {
        struct Uncounted;
        impl Side for Uncounted {
            fn run(&self, _: Duration) -> Result<Vec<f64>> {
                Ok(vec![1.0])
            }
            fn accuracy(&self) -> Result<Option<Accuracy>> {
                Err(anyhow::anyhow!("no answer"))
            }
        }
        let mut runner = Runner::new(Ok(Box::new(Uncounted)));
        runner.run(Duration::ZERO, true);
        let measured = runner.finish().unwrap();
        assert_eq!((measured.summaries.len(), measured.accuracy.is_err()), (1, true));
    }

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
