//! Many takes and refunds as the columns of one statement, and its answer as theirs.
//!
//! The statement is told what is wanted; it tells what it found, and how much of it was granted. What each caller is told is
//! worked out here from what was found, by the law of the core; where takes were walked, that both come to the same is checked.

use std::time::SystemTime;

use admit::{Bucket, Burst, Decision, Key, Line, Now, Scope, Take, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::database::{CallError, Database, Param, get, moment, timestamp};
use super::held::Buckets;

/// What the statement tells of a run that needs a bucket which it passed over.
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
    /// Somebody else holds one of its buckets.
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
    line_buckets: Vec<usize>,
    lines: Lines,
    /// How many lines each run has; nothing if each has one, and all lines of a bucket are of one budget.
    run_lines: Option<Vec<usize>>,
    run_times: Vec<i32>,
    /// For each operation, its run.
    run_of: Vec<usize>,
    /// For each run, where its lines begin.
    first_lines: Vec<usize>,
}

/// A batch as it is told to `take_many`, and to what calls that.
pub(super) struct Told<'b> {
    batch: &'b Batch<'b>,
    line_buckets: Vec<i32>,
    run_lines: Option<Vec<i32>>,
    scopes: Vec<&'b str>,
    keys: Vec<Uuid>,
    at: Option<SystemTime>,
    lock_wait_ms: i32,
    free: Option<Vec<bool>>,
}

impl Told<'_> {
    /// The last parameters of a statement.
    pub(super) fn params(&self) -> [Param<'_>; 14] {
        let Self { batch, .. } = self;
        [
            (&self.scopes, Type::TEXT_ARRAY),
            (&self.keys, Type::UUID_ARRAY),
            (&batch.bounds.costs, Type::FLOAT8_ARRAY),
            (&batch.bounds.rates, Type::FLOAT8_ARRAY),
            (&batch.bounds.bursts, Type::FLOAT8_ARRAY),
            (&self.line_buckets, Type::INT4_ARRAY),
            (&batch.lines.costs, Type::FLOAT8_ARRAY),
            (&batch.lines.rates, Type::FLOAT8_ARRAY),
            (&batch.lines.bursts, Type::FLOAT8_ARRAY),
            (&self.run_lines, Type::INT4_ARRAY),
            (&batch.run_times, Type::INT4_ARRAY),
            (&self.at, Type::TIMESTAMPTZ),
            (&self.lock_wait_ms, Type::INT4),
            (&self.free, Type::BOOL_ARRAY),
        ]
    }
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

    /// No line that is put in here wants less than the `i`th: not a smaller cost, not a higher level. Tells whether it was of
    /// this budget before.
    fn loosen(&mut self, i: usize, (cost, rate, burst): (f64, f64, f64)) -> bool {
        let same = (self.rates[i], self.bursts[i]) == (rate, burst);
        self.costs[i] = self.costs[i].min(cost);
        self.rates[i] = self.rates[i].max(rate);
        self.bursts[i] = self.bursts[i].max(burst);
        same
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
    pub(super) fn of(operations: impl Iterator<Item = (Want, &'t Take)> + Clone) -> Result<Self, CallError> {
        let mut batch = Self::default();
        batch.buckets.extend(operations.clone().flat_map(|(_, take)| take.lines()).map(place));
        batch.buckets.sort_unstable();
        batch.buckets.dedup();
        // For each bucket, the last run on it.
        let mut last_runs: Vec<Option<usize>> = vec![None; batch.buckets.len()];
        let (mut run_lines, mut mixed) = (Vec::new(), false);
        batch.bounds.costs.resize(batch.buckets.len(), f64::INFINITY);
        batch.bounds.rates.resize(batch.buckets.len(), 0.0);
        batch.bounds.bursts.resize(batch.buckets.len(), 0.0);
        for (want, take) in operations {
            if let [line] = take.lines()
                && let Some(run) = last_runs[batch.number(line)?]
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
                let number = batch.number(line)?;
                let same = batch.bounds.loosen(number, figures(want, line));
                mixed |= !same && last_runs[number].is_some();
                batch.line_buckets.push(number);
                batch.lines.push(figures(want, line));
                last_runs[number] = Some(run);
            }
            run_lines.push(take.lines().len());
            batch.run_times.push(1);
            batch.run_of.push(run);
        }
        batch.run_lines = (mixed || run_lines.iter().any(|&lines| lines != 1)).then_some(run_lines);
        Ok(batch)
    }

    /// All lines have their bucket among the batch's.
    fn number(&self, line: &Line) -> Result<usize, CallError> {
        let found = self.buckets.binary_search(&place(line));
        found.map_err(|_| CallError::Answer("a line has no bucket in its batch".into()))
    }

    /// With the moment, in haste or not, and those buckets that are passed `over`.
    pub(super) fn told(
        &self,
        now: Now,
        database: &Database,
        hasty: bool,
        over: &Buckets,
    ) -> Result<Told<'_>, CallError> {
        let (scopes, keys) = self.places();
        let (at, lock_wait_ms) = (moment(now), database.lock_wait_ms(hasty));
        let is_free = |&(scope, key): &(&Scope, Key)| !over.contains(&(scope.clone(), key));
        let free = (!over.is_empty()).then(|| self.buckets.iter().map(is_free).collect());
        let line_buckets = ints(self.line_buckets.iter().map(|number| number + 1))?;
        let run_lines = self.run_lines.as_ref().map(|lines| ints(lines.iter().copied())).transpose()?;
        Ok(Told { batch: self, line_buckets, run_lines, scopes, keys, at, lock_wait_ms, free })
    }

    /// The columns of scopes and keys.
    pub(super) fn places(&self) -> (Vec<&'t str>, Vec<Uuid>) {
        columns(self.buckets.iter().copied())
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
        self.answer_of(operations.map(Some), row, server_clock)
    }

    /// The same where some took no part, and so have no outcome.
    pub(super) fn answer_of(
        &self,
        operations: impl Iterator<Item = Option<(Want, &'t Take)>>,
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
        for (operation, &run) in operations.zip(&self.run_of) {
            let Some((want, take)) = operation else { continue };
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

    /// For each operation its run, counted from 1 as the server does.
    pub(super) fn runs(&self) -> Result<Vec<i32>, CallError> {
        ints(self.run_of.iter().map(|run| run + 1))
    }

    /// The numbers of the buckets of a take, which is in this run.
    fn numbers(&self, run: usize, take: &Take) -> impl Iterator<Item = usize> + Clone + use<'_, 't> {
        self.line_buckets[self.first_lines[run]..][..take.lines().len()].iter().copied()
    }

    /// What is wanted of each bucket, if that is all of one kind, and taking it at once leaves the same bits as taking it one by
    /// one. So it is for one take, and for many of a whole number of tokens: as no bucket holds more than 2⁵³, no step rounds.
    pub(super) fn totals(&self) -> Option<Vec<f64>> {
        if self.run_lines.is_some() || self.run_times.len() != self.buckets.len() {
            return None;
        }
        let mut totals = vec![0.0; self.buckets.len()];
        for ((&cost, &number), &times) in self.lines.costs.iter().zip(&self.line_buckets).zip(&self.run_times)
        {
            if cost < 0.0 || (times > 1 && cost.fract() != 0.0) {
                return None;
            }
            let total = cost * f64::from(times);
            if times > 1 && total >= Burst::MAX_TOKENS {
                return None; // The product may be rounded.
            }
            totals[number] = total;
        }
        Some(totals)
    }

    /// What became of those operations whose buckets paid their totals, from the row that answers that; nothing of the others.
    pub(super) fn paid(
        &self,
        takes: impl Iterator<Item = &'t Take>,
        row: &Row,
        server_clock: bool,
    ) -> Result<Vec<Option<Outcome>>, CallError> {
        let at = timestamp(get(row, 0)?)?;
        let debited: Vec<i64> = get::<Option<_>>(row, 1)?.unwrap_or_default();
        let tokens: Vec<f64> = get::<Option<_>>(row, 2)?.unwrap_or_default();
        let times: Vec<SystemTime> = get::<Option<_>>(row, 3)?.unwrap_or_default();
        if [tokens.len(), times.len()] != [debited.len(); 2] {
            return Err(CallError::Answer("not one bucket for each that was debited".into()));
        }
        let mut left: Vec<Option<Bucket>> = vec![None; self.buckets.len()];
        for ((number, tokens), time) in debited.into_iter().zip(tokens).zip(times) {
            let number = usize::try_from(number).unwrap_or_default();
            let place = number.checked_sub(1).and_then(|number| left.get_mut(number));
            let place = place.ok_or_else(|| CallError::Answer("a bucket that was not asked".into()))?;
            *place = Some(Bucket { tokens, refilled_at: timestamp(time)? });
        }
        // How many of each run are still to be told.
        let mut untold = self.run_times.clone();
        let outcome = |(take, &run): (&Take, &usize)| {
            let [number] = self.numbers(run, take).collect::<Vec<_>>()[..] else { return None };
            let bucket = left[number]?;
            untold[run] -= 1;
            let tokens = bucket.tokens + f64::from(untold[run]) * self.lines.costs[self.first_lines[run]];
            let at = if server_clock { at.max(bucket.refilled_at) } else { at };
            Some(Outcome::Decided(take.granted(at, &[Bucket { tokens, ..bucket }])))
        };
        Ok(takes.zip(&self.run_of).map(outcome).collect())
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

pub(super) fn place(line: &Line) -> (&Scope, Key) {
    (&line.scope, line.key)
}

/// Buckets as the columns that say which they are.
pub(super) fn columns<'t>(places: impl Iterator<Item = (&'t Scope, Key)>) -> (Vec<&'t str>, Vec<Uuid>) {
    places.map(|(scope, key)| (scope.as_str(), Uuid::from_bytes(*key.as_bytes()))).unzip()
}

/// Numbers as the server counts. A batch has fewer of anything.
fn ints(numbers: impl Iterator<Item = usize>) -> Result<Vec<i32>, CallError> {
    numbers.map(i32::try_from).collect::<Result<_, _>>().map_err(|error| CallError::Answer(error.into()))
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
