//! Which scopes are leased, and how much at most.

use std::fmt;
use std::str::FromStr;

use admit::{Budget, Scope};

/// The most that one process may hold of a bucket, as a part of its burst: more than nothing, and up to a half.
///
/// ```
/// use admit_store::leases::Share;
///
/// let share: Share = "5%".parse()?;
/// assert_eq!(share.of("1000/minute".parse()?), 50.0);
/// assert_eq!(share.to_string(), "5%");
/// assert!("60%".parse::<Share>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(f64);

/// A text or a number that is no share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no share of a burst: it is more than 0% and up to 50%, as in \"5%\"")]
pub struct ShareError(String);

impl Share {
    /// The largest: two processes can share a bucket evenly, and no more is of use.
    const MAX: f64 = 0.5;

    /// A share of `percent` of the burst.
    ///
    /// # Errors
    /// [`ShareError`] unless it is more than 0 and up to 50.
    pub fn percent(percent: f64) -> Result<Self, ShareError> {
        let part = percent / 100.0;
        match part > 0.0 && part <= Self::MAX {
            true => Ok(Self(part)),
            false => Err(ShareError(format!("{percent}%"))),
        }
    }

    /// The most tokens that a process holds of a bucket of this budget.
    pub fn of(self, budget: Budget) -> f64 {
        self.0 * budget.burst().tokens()
    }
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        let wrong = || ShareError(text.to_owned());
        let number = text.trim().strip_suffix('%').ok_or_else(wrong)?.trim_end();
        if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return Err(wrong()); // Neither signs nor exponents, as in rates.
        }
        Self::percent(number.parse().map_err(|_| wrong())?).map_err(|_| wrong())
    }
}

/// In percent, as it is read.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = (self.0 * 1e8).round() / 1e6; // 0.07 * 100 is not 7.
        write!(f, "{percent}%")
    }
}

/// The scopes that are leased, each with its share. Without one, nothing is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leases {
    /// In the order of their names, each once.
    pub(super) shares: Vec<(Scope, Share)>,
    pub(super) max_buckets: Option<usize>,
}

impl Leases {
    /// These scopes; of one that stands twice, the first counts.
    pub fn new(shares: impl IntoIterator<Item = (Scope, Share)>) -> Self {
        let mut shares: Vec<_> = shares.into_iter().collect();
        shares.sort_by(|(one, _), (other, _)| one.cmp(other));
        shares.dedup_by(|(later, _), (earlier, _)| later == earlier);
        Self { shares, max_buckets: None }
    }

    /// The most buckets of each scope that slices are held of; one more, and another is dropped. Default
    /// [`DEFAULT_MAX_BUCKETS`](super::DEFAULT_MAX_BUCKETS).
    #[must_use]
    pub fn max_buckets(self, max: usize) -> Self {
        Self { max_buckets: Some(max), ..self }
    }

    /// Whether no scope is leased.
    pub fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read_as_it_is_written() {
        for text in ["5%", "0.1%", "50%", "12.5%", "7%"] {
            assert_eq!(text.parse::<Share>().unwrap().to_string(), text);
        }
        for wrong in ["", "5", "%", "0%", "-5%", "51%", "nan%", "inf%", "1e1%", "5 percent", "1.2.3%"] {
            assert_eq!(wrong.parse::<Share>(), Err(ShareError(wrong.to_owned())));
        }
    }

    #[test]
    fn a_scope_stands_once() {
        let share = |text: &str| text.parse::<Share>().unwrap();
        let (a, b) = (Scope::from_static("a"), Scope::from_static("b"));
        let leases =
            Leases::new([(b.clone(), share("1%")), (a.clone(), share("2%")), (b.clone(), share("3%"))]);
        assert_eq!(leases.shares, [(a, share("2%")), (b, share("1%"))]);
    }
}
