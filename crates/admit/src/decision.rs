//! What a take comes to.

use crate::{Few, Timestamp, Wait};

/// The answer to a take. A refusal is an answer, not an error; a budget that could not be evaluated is an error
/// ([`TakeError`](crate::TakeError)) and never a refusal.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a request may run only if its take was granted"]
pub enum Decision {
    /// Every charge was debited.
    Granted(Grant),
    /// Nothing was debited.
    Refused(Refusal),
}

impl Decision {
    /// Whether every charge was debited.
    pub fn is_granted(&self) -> bool {
        matches!(self, Self::Granted(_))
    }

    /// The refusal, if it is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Granted(_) => None,
            Self::Refused(refusal) => Some(refusal),
        }
    }
}

/// All charges of a take were debited.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// When, by the clock that decided; nothing if no bucket was asked.
    pub at: Option<Timestamp>,
    /// For each charge, in order, the tokens left in its bucket; nothing for a cost of zero, whose bucket is not asked.
    pub left: Few<Option<f64>>,
}

/// At least one charge of a take did not fit, so none was debited.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// When, by the clock that decided; nothing if no bucket was asked.
    pub at: Option<Timestamp>,
    /// For each charge, in order, how it stood. At least one has a wait.
    pub standings: Few<Standing>,
}

/// How one charge of a refused take stood.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// The tokens its bucket held; nothing if the bucket was not asked.
    pub level: Option<f64>,
    /// How long until the charge fits; nothing if it did.
    pub wait: Option<Wait>,
}

impl Refusal {
    /// The position of the charge that has to wait longest, and its wait: what `Retry-After` tells.
    pub fn longest(&self) -> (usize, Wait) {
        self.refused()
            .max_by(|(_, a), (_, b)| a.cmp(b).then(std::cmp::Ordering::Greater)) // The first of equals.
            .unwrap_or((0, Wait::Never)) // A refusal without a refused charge is not made.
    }

    /// The positions and waits of all charges that did not fit.
    pub fn refused(&self) -> impl Iterator<Item = (usize, Wait)> {
        self.standings.iter().enumerate().filter_map(|(i, standing)| Some((i, standing.wait?)))
    }

    /// Whole seconds to wait, rounded up and at least 1, as the `Retry-After` header tells them; nothing if the charges
    /// never fit.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        match self.longest().1 {
            Wait::After(wait) => Some(wait.as_micros().div_ceil(1_000_000).clamp(1, u64::MAX.into()) as u64),
            Wait::Never => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refusal(waits: &[Option<Wait>]) -> Refusal {
        Refusal { at: None, standings: waits.iter().map(|&wait| Standing { level: None, wait }).collect() }
    }

    #[test]
    fn the_longest_wait_is_told_and_never_is_longest() {
        let (short, long) = (Wait::After(Duration::from_micros(1)), Wait::After(Duration::from_secs(60)));
        assert_eq!(refusal(&[None, Some(short), Some(long), Some(long)]).longest(), (2, long));
        assert_eq!(refusal(&[Some(long), Some(Wait::Never)]).longest(), (1, Wait::Never));
    }

    #[test]
    fn retry_after_is_whole_seconds_rounded_up_and_at_least_one() {
        let after =
            |micros| refusal(&[Some(Wait::After(Duration::from_micros(micros)))]).retry_after_seconds();
        assert_eq!([0, 1, 1_000_000, 1_000_001].map(after), [Some(1), Some(1), Some(1), Some(2)]);
        assert_eq!(refusal(&[Some(Wait::Never)]).retry_after_seconds(), None);
    }
}
