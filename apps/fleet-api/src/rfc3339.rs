//! Timestamps as they stand in requests, responses and records.

use admit::Timestamp;

/// The instant of an RFC 3339 text, cut to microseconds; nothing for any other text, for years before 1970, as an
/// unset timestamp of a client would be, and for what is after 9999-12-30T22:00Z, which the calendar does not reach.
pub fn parse(text: &str) -> Option<Timestamp> {
    if !has_the_form(text.as_bytes()) {
        return None; // The parser below takes more: other separators, offsets without a colon, zones in brackets.
    }
    let instant: jiff::Timestamp = text.parse().ok()?;
    Timestamp::from_unix_micros(instant.as_microsecond()).ok()
}

/// The RFC 3339 text of an instant, in UTC.
pub fn format(instant: Timestamp) -> String {
    // Both types cover the years 1970 to 9999.
    jiff::Timestamp::from_microsecond(instant.unix_micros())
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .to_string()
}

/// `YYYY-MM-DDThh:mm:ss`, a fraction if there is one, and `Z` or `±hh:mm`, of less than a day.
fn has_the_form(text: &[u8]) -> bool {
    let matches = |text: &[u8], form: &[u8]| {
        text.len() == form.len()
            && text.iter().zip(form).all(|(byte, form)| match form {
                b'0' => byte.is_ascii_digit(),
                _ => byte.eq_ignore_ascii_case(form),
            })
    };
    let Some((date_time, rest)) = text.split_at_checked(19) else { return false };
    let (fraction, zone) = match rest.strip_prefix(b".") {
        Some(rest) => rest.split_at(rest.iter().take_while(|byte| byte.is_ascii_digit()).count()),
        None => (&b"0"[..], rest),
    };
    matches(date_time, b"0000-00-00T00:00:00")
        && (1..=9).contains(&fraction.len())
        && (matches(zone, b"Z") || matches(zone, b"+00:00") || matches(zone, b"-00:00"))
        && zone.get(1..3).is_none_or(|hours| hours < b"24".as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rfc_3339_is_read() {
        let second = 1_735_689_600_000_000;
        for (text, micros) in [
            ("2025-01-01T00:00:00Z", second),
            ("2025-01-01t00:00:00.123456789z", second + 123_456),
            ("2025-01-01T01:30:00+01:30", second),
        ] {
            assert_eq!(parse(text).map(Timestamp::unix_micros), Some(micros), "{text}");
        }
        for wrong in [
            "",
            "2025-01-01",
            "2025-01-01 00:00:00Z",
            "2025-01-01T00:00:00",
            "2025-01-01T00:00:00.Z",
            "2025-01-01T00:00:00+0100",
            "2025-01-01T00:00:00+24:00", // Was taken.
            "2025-01-01T00:00:00Z[UTC]",
            "2025-13-01T00:00:00Z",
            "0001-01-01T00:00:00Z",
            "1735689600",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let instant = Timestamp::from_unix_micros(1_735_689_600_123_456).unwrap();
        assert_eq!(format(instant), "2025-01-01T00:00:00.123456Z");
        assert_eq!(parse(&format(instant)), Some(instant));
    }
}
