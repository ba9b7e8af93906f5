//! Values as people read them.

use anyhow::Result;

use crate::case::{Accuracy, Bar, Unit};
use crate::rounds::{Summary, chain};

/// Three digits and a unit, as in `68,100/s` and `1.24 ms`.
pub(super) fn value(value: f64, unit: Unit) -> String {
    let number = number(value);
    match unit {
        Unit::PerSecond => format!("{number}/s"),
        Unit::Milliseconds => format!("{number} ms"),
        Unit::Microseconds => format!("{number} µs"),
        Unit::Nanoseconds => format!("{number} ns"),
        Unit::Bytes => format!("{number} B"),
    }
}

/// The median, and from the lowest to the highest in percent of it.
pub(super) fn summary(summary: Summary, unit: Unit) -> String {
    format!("{} ({:.0} %)", value(summary.median, unit), summary.spread() * 100.0)
}

/// The median, and the lowest and the highest, as in `2 (1.90–2.30)`.
pub(super) fn ratio(ratio: Summary) -> String {
    format!("{} ({}–{})", number(ratio.median), number(ratio.lowest), number(ratio.highest))
}

/// Whether the median meets the bar, and whether each round says the same.
pub(super) fn verdict(bar: Bar, ratio: Summary) -> String {
    let is_met = bar.is_met(ratio.median);
    let agree = [ratio.lowest, ratio.highest].iter().all(|&end| bar.is_met(end) == is_met);
    let told = if is_met { "met" } else { "**missed**" };
    if agree { told.to_owned() } else { format!("{told}, not in each round") }
}

/// As in `≥ 45`.
pub(super) fn bar(bar: Bar) -> String {
    match bar {
        Bar::AtLeast(least) => format!("≥ {}", number(least)),
        Bar::AtMost(most) => format!("≤ {}", number(most)),
    }
}

/// As in `1.000 (50 of 50)`.
pub(super) fn accuracy(accuracy: &Result<Option<Accuracy>>) -> String {
    let Accuracy { admitted, allowed } = match accuracy {
        Ok(Some(accuracy)) => *accuracy,
        Ok(None) => return String::new(),
        Err(error) => return format!("not counted: {}", chain(error)),
    };
    let ratio = admitted as f64 / allowed.max(1) as f64;
    format!("{ratio:.3} ({} of {})", grouped(admitted), grouped(allowed))
}

/// Three digits, or all of those before the point, in groups.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let digits = value.abs().log10().floor() as i32 + 1;
    if digits >= 3 {
        let unit = 10_f64.powi(digits - 3);
        return grouped(((value / unit).round() * unit) as u64);
    }
    let text = format!("{value:.*}", (3 - digits) as usize);
    match text.split_once('.') {
        Some((whole, places)) if places.bytes().all(|place| place == b'0') => whole.to_owned(),
        _ => text,
    }
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let shown = [1_234_567.0, 999.6, 100.0, 45.0, 12.34, 1.1, 0.95, 0.012_34].map(number);
        assert_eq!(shown, ["1,230,000", "1,000", "100", "45", "12.3", "1.10", "0.950", "0.0123"]);
    }

    #[test]
    fn accuracy_is_told_with_its_counts() {
        let told = accuracy(&Ok(Some(Accuracy { admitted: 62, allowed: 50 })));
        assert_eq!(told, "1.240 (62 of 50)");
        assert_eq!(accuracy(&Ok(None)), "");
    }

    /// A median just above a bar was told as a bar that is met, however far the rounds lay apart.
    #[test]
    fn a_verdict_tells_whether_the_rounds_agree() {
        let of = |lowest, highest| Summary { median: 2.0, lowest, highest };
        assert_eq!(verdict(Bar::AtLeast(2.0), of(2.0, 9.0)), "met");
        assert_eq!(verdict(Bar::AtLeast(2.0), of(1.9, 9.0)), "met, not in each round");
        assert_eq!(verdict(Bar::AtMost(1.0), of(0.9, 9.0)), "**missed**, not in each round");
    }
}
