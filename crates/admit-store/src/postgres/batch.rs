//! Many takes and refunds as the columns of one statement, and its answer as theirs.
//!
//! The statement is told what is wanted; it tells what it found, and how much of it was granted. What each caller is told is
//! worked out here from what was found, by the law of the core. That both come to the same is checked every time.

use std::time::SystemTime;

use admit::{Bucket, Decision, Key, Line, Scope, Take, Timestamp};
use tokio_postgres::Row;
use uuid::Uuid;

use super::database::{CallError, get, timestamp};

/// What the statement tells of a run that needs a bucket which somebody else holds.
const BUSY: i32 = -1;

/// What is to be done with the lines of a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// All debited, or none.
    Debit,
    /// All given back.
    GiveBack,
}

/// What became of one operation of a batch.
#[derive(Debug)]
pub(super) enum Outcome {
    Decided(Decision),
    GivenBack,
    /// Somebody else holds one of its buckets for too long.
    Busy,
}

/// What became of all operations of a batch.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) at: Timestamp,
    /// In the order of the operations.
    pub(super) outcomes: Vec<Outcome>,
    /// The batch's buckets as they are left, in its order.
    left: Vec<Option<Bucket>>,
}

/// Operations as columns. Only the order on each bucket counts; so a take that is like the one before it on its bucket is
/// not told again, but joins its *run*.
#[derive(Debug, Default)]
pub(super) struct Batch<'t> {
    /// In lock order.
    buckets: Vec<(&'t Scope, Key)>,
    pub(super) bounds: Lines,
    pub(super) line_buckets: Vec<i32>,
    pub(super) lines: Lines,
    /// How many lines each run has; nothing if each has one.
    pub(super) run_lines: Option<Vec<i32>>,
    pub(super) run_times: Vec<i32>,
    /// For each operation, its run.
    run_of: Vec<usize>,
    /// For each run, where its lines begin.
    first_lines: Vec<usize>,
}

/// What is wanted of buckets. What is given back has a cost below zero.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) costs: Vec<f64>,
    pub(super) rates: Vec<f64>,
    pub(super) bursts: Vec<f64>,
}

impl Lines {
    fn push(&mut self, (cost, rate, burst): (f64, f64, f64)) {
        self.costs.push(cost);
        self.rates.push(rate);
        self.bursts.push(burst);
    }

    fn get(&self, i: usize) -> (f64, f64, f64) {
        (self.costs[i], self.rates[i], self.bursts[i])
    }

    /// No line that is put in here wants less than the `i`th: not a smaller cost, not a higher level.
    fn loosen(&mut self, i: usize, (cost, rate, burst): (f64, f64, f64)) {
        self.costs[i] = self.costs[i].min(cost);
        self.rates[i] = self.rates[i].max(rate);
        self.bursts[i] = self.bursts[i].max(burst);
    }
}

fn figures(want: Want, line: &Line) -> (f64, f64, f64) {
    let cost = match want {
        Want::Debit => line.cost.tokens(),
        Want::GiveBack => -line.cost.tokens(),
    };
    (cost, line.budget.rate().tokens_per_second(), line.budget.burst().tokens())
}

impl<'t> Batch<'t> {
    /// The columns for these operations, in their order.
    pub(super) fn of(operations: impl Iterator<Item = (Want, &'t Take)> + Clone) -> Self {
        let mut batch = Self::default();
        batch.buckets.extend(operations.clone().flat_map(|(_, take)| take.lines()).map(place));
        batch.buckets.sort_unstable();
        batch.buckets.dedup();
        // For each bucket, the last run on it.
        let mut last_runs: Vec<Option<usize>> = vec![None; batch.buckets.len()];
        let mut run_lines = Vec::new();
        batch.bounds.costs.resize(batch.buckets.len(), f64::INFINITY);
        batch.bounds.rates.resize(batch.buckets.len(), 0.0);
        batch.bounds.bursts.resize(batch.buckets.len(), 0.0);
        for (want, take) in operations {
            if let [line] = take.lines()
                && let Some(run) = last_runs[batch.number(line)]
                && run_lines[run] == 1
                && batch.lines.get(batch.first_lines[run]) == figures(want, line)
            {
                batch.run_times[run] += 1;
                batch.run_of.push(run);
                continue;
            }
            let run = batch.run_times.len();
            batch.first_lines.push(batch.line_buckets.len());
            for line in take.lines() {
                let number = batch.number(line);
                batch.bounds.loosen(number, figures(want, line));
                batch.line_buckets.push(int(number + 1));
                batch.lines.push(figures(want, line));
                last_runs[number] = Some(run);
            }
            run_lines.push(int(take.lines().len()));
            batch.run_times.push(1);
            batch.run_of.push(run);
        }
        batch.run_lines = run_lines.iter().any(|&lines| lines != 1).then_some(run_lines);
        batch
    }

    /// All lines have their bucket among the batch's.
    fn number(&self, line: &Line) -> usize {
        self.buckets.binary_search(&place(line)).unwrap_or_default()
    }

    pub(super) fn scopes(&self) -> Vec<&'t str> {
        self.buckets.iter().map(|(scope, _)| scope.as_str()).collect()
    }

    pub(super) fn keys(&self) -> Vec<Uuid> {
        self.buckets.iter().map(|(_, key)| Uuid::from_bytes(*key.as_bytes())).collect()
    }

    /// What became of the operations that this batch was made of, from the row that answers its statement. If the `server`'s
    /// clock decided, no grant is told a moment before one that its buckets were already debited at: then the law also
    /// holds between the moments that are told.
    pub(super) fn answer(
        &self,
        operations: impl Iterator<Item = (Want, &'t Take)>,
        row: &Row,
        server_clock: bool,
    ) -> Result<Answer, CallError> {
        let at = timestamp(get(row, 0)?)?;
        let mut buckets = buckets(self.buckets.len(), get(row, 1)?, get(row, 2)?)?;
        let told: Vec<i32> = get(row, 3)?;
        if told.len() != self.run_times.len() {
            return Err(CallError::Answer("not one count for each run".into()));
        }
        let mut granted = vec![0; told.len()];
        let mut outcomes = Vec::with_capacity(self.run_of.len());
        for ((want, take), &run) in operations.zip(&self.run_of) {
            let numbers = self.numbers(run, take);
            if told[run] == BUSY {
                granted[run] = BUSY;
                outcomes.push(Outcome::Busy);
                continue;
            }
            if want == Want::GiveBack {
                granted[run] = told[run]; // Where there is no row, there is nothing to do.
                for (number, line) in numbers.zip(take.lines()) {
                    buckets[number] = buckets[number].map(|bucket| bucket.refund(line.cost, line.budget));
                }
                outcomes.push(Outcome::GivenBack);
                continue;
            }
            let before: Vec<Option<Bucket>> = numbers.clone().map(|number| buckets[number]).collect();
            let (mut decision, debited) = take.decide(at, &before);
            if let Some(debited) = debited {
                granted[run] += 1;
                if server_clock {
                    let latest = debited.iter().map(|bucket| bucket.refilled_at).fold(at, Timestamp::max);
                    decision = take.granted(latest, &debited);
                }
                numbers.zip(debited).for_each(|(number, bucket)| buckets[number] = Some(bucket));
            }
            outcomes.push(Outcome::Decided(decision));
        }
        if granted != told {
            return Err(CallError::Answer("the server granted otherwise than the law".into()));
        }
        Ok(Answer { at, outcomes, left: buckets })
    }

    /// The numbers of the buckets of a take, which is in this run.
    fn numbers(&self, run: usize, take: &Take) -> impl Iterator<Item = usize> + Clone + use<'_, 't> {
        let numbers = &self.line_buckets[self.first_lines[run]..][..take.lines().len()];
        numbers.iter().map(|&number| usize::try_from(number).unwrap_or(1) - 1)
    }

    /// How the `i`th operation's buckets are left by the batch.
    pub(super) fn left(&self, answer: &Answer, i: usize, take: &Take) -> Vec<Option<Bucket>> {
        self.numbers(self.run_of[i], take).map(|number| answer.left[number]).collect()
    }

    /// All buckets of the batch.
    pub(super) fn buckets(&self) -> &[(&'t Scope, Key)] {
        &self.buckets
    }
}

fn place(line: &Line) -> (&Scope, Key) {
    (&line.scope, line.key)
}

/// A batch has fewer of anything.
fn int(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// As many buckets as were asked for, from their columns.
pub(super) fn buckets(
    count: usize,
    tokens: Vec<Option<f64>>,
    refilled_at: Vec<Option<SystemTime>>,
) -> Result<Vec<Option<Bucket>>, CallError> {
    if [tokens.len(), refilled_at.len()] != [count; 2] {
        return Err(CallError::Answer("not one bucket for each that was asked".into()));
    }
    (tokens.into_iter().zip(refilled_at)).map(|(tokens, time)| bucket(tokens, time)).collect()
}

/// A bucket from its columns, which are NULL if it has no row.
pub(super) fn bucket(
    tokens: Option<f64>,
    refilled_at: Option<SystemTime>,
) -> Result<Option<Bucket>, CallError> {
    match (tokens, refilled_at) {
        (Some(tokens), Some(time)) => Ok(Some(Bucket { tokens, refilled_at: timestamp(time)? })),
        _ => Ok(None),
    }
}
