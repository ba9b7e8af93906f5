//! From the lines of a take, one for each bucket, back to its charges.

use admit::{Charge, Decision, Grant, Refusal, Standing, Take, Timestamp};

/// A grant that left so much in the bucket of each line.
pub(super) fn granted(
    charges: &[Charge],
    take: &Take,
    at: Option<Timestamp>,
    left: impl Fn(usize) -> Option<f64>,
) -> Decision {
    let left = charges.iter().map(|charge| left(line_of(take, charge)?)).collect();
    Decision::Granted(Grant { at, left })
}

/// A refusal in which each line stood so.
pub(super) fn refused(
    charges: &[Charge],
    take: &Take,
    at: Option<Timestamp>,
    standing: impl Fn(usize) -> Standing,
) -> Decision {
    let fits = Standing { level: None, wait: None };
    let standings = charges.iter().map(|charge| line_of(take, charge).map_or(fits, &standing)).collect();
    Decision::Refused(Refusal { at, standings })
}

/// The line that a charge is part of; none for a cost of zero.
fn line_of(take: &Take, charge: &Charge) -> Option<usize> {
    let wanted = (&charge.scope, &charge.key);
    let line = || take.lines().binary_search_by(|line| (&line.scope, &line.key).cmp(&wanted)).ok();
    if charge.cost.is_zero() { None } else { line() }
}
