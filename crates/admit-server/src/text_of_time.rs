//! Moments as people and JSON have them.

use admit::Timestamp;

/// As RFC 3339 has it, in UTC, to the microsecond.
pub(crate) fn rfc3339(moment: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(moment.unix_micros())
        .map(|moment| moment.to_string())
        .unwrap_or_default()
}
