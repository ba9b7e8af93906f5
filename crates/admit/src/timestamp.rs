//! An instant in whole microseconds, the resolution of every store.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time: whole microseconds since 1970-01-01T00:00:00Z, without leap seconds.
///
/// The range ends with the year 9999, so that every store can hold every timestamp and arithmetic on two of them
/// cannot overflow. Arithmetic saturates at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// A timestamp outside of the years 1970 to 9999.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{micros} µs is not between the years 1970 and 9999")]
pub struct TimestampError {
    micros: i128,
}

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const MIN: Self = Self(0);
    /// The last microsecond of the year 9999.
    pub const MAX: Self = Self(253_402_300_799_999_999);

    /// The instant `micros` microseconds after the Unix epoch.
    ///
    /// # Errors
    /// [`TimestampError`] if that is before 1970 or after the year 9999.
    #[inline]
    pub const fn from_unix_micros(micros: i64) -> Result<Self, TimestampError> {
        if micros < Self::MIN.0 || micros > Self::MAX.0 {
            return Err(TimestampError { micros: micros as i128 });
        }
        Ok(Self(micros))
    }

    /// Microseconds since the Unix epoch.
    pub const fn unix_micros(self) -> i64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    #[inline]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }

    /// The instant `duration` later, its nanoseconds cut off; [`Timestamp::MAX`] if that is past it.
    #[must_use]
    #[inline]
    pub fn saturating_add(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros).min(Self::MAX.0))
    }

    /// The instant `duration` earlier, its nanoseconds cut off; [`Timestamp::MIN`] if that is before it.
    #[must_use]
    #[inline]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(micros).max(Self::MIN.0))
    }
}

impl TryFrom<SystemTime> for Timestamp {
    type Error = TimestampError;

    /// Cuts off what is finer than a microsecond.
    fn try_from(time: SystemTime) -> Result<Self, TimestampError> {
        let micros = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i128::try_from(after.as_micros()).unwrap_or(i128::MAX),
            Err(before) => -i128::try_from(before.duration().as_micros()).unwrap_or(i128::MAX) - 1,
        };
        i64::try_from(micros)
            .map_err(|_| TimestampError { micros })
            .and_then(|in_range| Self::from_unix_micros(in_range).map_err(|_| TimestampError { micros }))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(timestamp: Timestamp) -> Self {
        UNIX_EPOCH + Duration::from_micros(timestamp.0.unsigned_abs())
    }
}

/// Seconds since the Unix epoch with six decimals.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_is_1970_to_9999() {
        assert!(Timestamp::from_unix_micros(-1).is_err());
        assert!(Timestamp::from_unix_micros(Timestamp::MAX.0 + 1).is_err());
        assert!(Timestamp::try_from(UNIX_EPOCH - Duration::from_nanos(1)).is_err());
        assert_eq!(Timestamp::MAX.saturating_add(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MIN.saturating_sub(Duration::MAX), Timestamp::MIN);
    }

    #[test]
    fn system_time_round_trips() {
        let timestamp = Timestamp(1_700_000_000_123_456);
        assert_eq!(Timestamp::try_from(SystemTime::from(timestamp)), Ok(timestamp));
    }
}
