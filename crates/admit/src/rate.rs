//! How fast a bucket refills.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::burst::{Burst, MIN_QUANTITY};

/// Tokens a second, from 10⁻⁹ to 2⁵³.
///
/// Read from text as `AMOUNT/PERIOD`: the amount is a number, with a byte unit (`B`, `KB`, `MB`, `GB` by the thousand;
/// `KiB`, `MiB`, `GiB` by 1,024) if tokens are bytes; the period is `second`, `minute`, `hour` or `day` (`s`, `m`, `h`,
/// `d` for short), or a number of them.
///
/// ```
/// use admit::Rate;
///
/// assert_eq!("10/second".parse(), Rate::per_second(10.0));
/// assert_eq!("100/hour".parse::<Rate>()?.tokens_per_second(), 100.0 / 3600.0);
/// assert_eq!("256KiB/second".parse(), Rate::per_second(262_144.0));
/// assert_eq!("5/10s".parse(), Rate::per_second(0.5));
/// assert_eq!("100/hour".parse::<Rate>()?.to_string(), "100/hour");
/// # Ok::<(), admit::RateError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(f64);

/// A text or a number that cannot be a rate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RateError {
    /// Not `AMOUNT/PERIOD`.
    #[error("{0:?} is not a rate; write an amount and a period, as in \"100/hour\" or \"256KiB/second\"")]
    Form(String),
    /// The part before the slash is not an amount.
    #[error(
        "{0:?} is not an amount; write a number, with B, KB, MB, GB, KiB, MiB or GiB behind it for bytes"
    )]
    Amount(String),
    /// The part behind the slash is not a period.
    #[error("{0:?} is not a period; write second, minute, hour or day, or a number of them as in \"10s\"")]
    Period(String),
    /// A rate that is not positive and finite, or too extreme to count exactly.
    #[error("{0:?} tokens a second is not a rate from 1e-9 to 2^53 tokens a second")]
    OutOfRange(f64),
}

const PERIODS: [(&str, f64); 4] = [("second", 1.0), ("minute", 60.0), ("hour", 3_600.0), ("day", 86_400.0)];

impl Rate {
    /// `tokens` tokens every second.
    ///
    /// # Errors
    /// [`RateError::OutOfRange`] unless the rate lies between 10⁻⁹ and 2⁵³ tokens a second; so for all constructors.
    pub fn per_second(tokens: f64) -> Result<Self, RateError> {
        if (MIN_QUANTITY..=Burst::MAX_TOKENS).contains(&tokens) {
            Ok(Self(tokens))
        } else {
            Err(RateError::OutOfRange(tokens))
        }
    }

    /// `tokens` tokens every minute, spread evenly.
    ///
    /// # Errors
    /// As [`Rate::per_second`].
    pub fn per_minute(tokens: f64) -> Result<Self, RateError> {
        Self::per_second(tokens / 60.0)
    }

    /// `tokens` tokens every hour, spread evenly.
    ///
    /// # Errors
    /// As [`Rate::per_second`].
    pub fn per_hour(tokens: f64) -> Result<Self, RateError> {
        Self::per_second(tokens / 3_600.0)
    }

    /// `tokens` tokens every 24 hours, spread evenly.
    ///
    /// # Errors
    /// As [`Rate::per_second`].
    pub fn per_day(tokens: f64) -> Result<Self, RateError> {
        Self::per_second(tokens / 86_400.0)
    }

    /// `tokens` tokens every `period`, spread evenly.
    ///
    /// # Errors
    /// As [`Rate::per_second`]; a period of zero gives no finite rate.
    pub fn new(tokens: f64, period: Duration) -> Result<Self, RateError> {
        Self::per_second(tokens / period.as_secs_f64())
    }

    /// Tokens a second.
    pub const fn tokens_per_second(self) -> f64 {
        self.0
    }

    /// The rate of a text, and the amount before its slash.
    pub(crate) fn parse_with_amount(text: &str) -> Result<(Self, f64), RateError> {
        let (amount, period) = text.split_once('/').ok_or_else(|| RateError::Form(text.to_owned()))?;
        let amount = parse_amount(amount.trim())?;
        Ok((Self::per_second(amount / parse_period(period.trim())?)?, amount))
    }
}

/// A plain decimal number at the start of `text`, and what follows it. Signs, exponents, `inf` and `nan` are no part.
fn split_number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.replace('_', "").parse().ok()?, rest.trim_start()))
}

pub(crate) fn parse_amount(text: &str) -> Result<f64, RateError> {
    let wrong = || RateError::Amount(text.to_owned());
    let (number, unit) = split_number(text).ok_or_else(wrong)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "kib" => 1_024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        _ => return Err(wrong()),
    };
    Ok(number * factor)
}

/// The period in seconds.
fn parse_period(text: &str) -> Result<f64, RateError> {
    let (count, unit) = split_number(text).unwrap_or((1.0, text));
    let seconds = match unit {
        "s" | "sec" | "second" | "seconds" => 1.0,
        "m" | "min" | "minute" | "minutes" => 60.0,
        "h" | "hour" | "hours" => 3_600.0,
        "d" | "day" | "days" => 86_400.0,
        _ => return Err(RateError::Period(text.to_owned())),
    };
    if count > 0.0 { Ok(count * seconds) } else { Err(RateError::Period(text.to_owned())) }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        Self::parse_with_amount(text).map(|(rate, _)| rate)
    }
}

/// In the shortest period that makes the amount a whole number, as in `100/hour`; in tokens a second if none does.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, seconds) in PERIODS {
            let amount = self.0 * seconds;
            let whole = amount.round();
            if whole >= 1.0 && (amount - whole).abs() <= whole * 1e-12 {
                return write!(f, "{whole}/{name}");
            }
        }
        write!(f, "{}/second", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_they_are_written() {
        let second = |text: &str| text.parse::<Rate>().map(Rate::tokens_per_second);
        assert_eq!(second("4000/second"), Ok(4_000.0), "per second means per second");
        assert_eq!(second("60 / m"), Ok(1.0));
        assert_eq!(second("0.5/s"), Ok(0.5));
        assert_eq!(second("1_000/2h"), Ok(1_000.0 / 7_200.0));
        assert_eq!(second("1.5MB/s"), Ok(1_500_000.0));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| text.parse::<Rate>().unwrap_err();
        assert_eq!(error("100"), RateError::Form("100".into()));
        assert_eq!(error("many/hour"), RateError::Amount("many".into()));
        assert_eq!(error("-1/hour"), RateError::Amount("-1".into()));
        assert_eq!(error("1XB/hour"), RateError::Amount("1XB".into()));
        assert_eq!(error("1/fortnight"), RateError::Period("fortnight".into()));
        assert_eq!(error("1/0s"), RateError::Period("0s".into()));
        assert_eq!(error("0/hour"), RateError::OutOfRange(0.0));
        assert_eq!(error("inf/hour"), RateError::Amount("inf".into()));
    }

    #[test]
    fn display_reads_back_as_the_same_rate() {
        for text in ["10/second", "100/hour", "1000/hour", "7/minute", "1/day", "0.3/second"] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.to_string(), if text == "0.3/second" { "18/minute" } else { text });
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
    }
}
