//! The table: a row for each measure and each peer.

use super::value::{accuracy, bar, ratio, summary, value, verdict};
use crate::case::Bar;
use crate::rounds::{Outcome, chain};

/// A row, as Markdown has it.
pub(crate) type Row = [String; 8];

/// The titles of the columns.
pub(crate) const TITLES: [&str; 8] =
    ["case", "Admit", "peer", "its", "ratio", "bar", "admitted ÷ allowed", "the peer's"];

/// The rows of a case.
pub(crate) fn rows(outcome: &Outcome) -> Vec<Row> {
    let name = &outcome.name;
    let compared = match &outcome.measured {
        Ok(compared) => compared,
        Err(error) => {
            return vec![row(name, [&format!("not measured: {}", chain(error)), "", "", "", "", "", ""])];
        }
    };
    let ours_admitted = accuracy(&compared.ours.accuracy);
    let mut rows = Vec::new();
    for (i, measure) in outcome.measures.iter().enumerate() {
        let Some(&ours) = compared.ours.summaries.get(i) else { continue };
        let case = format!("{name}: {}", measure.what);
        let told = summary(ours, measure.unit);
        if let Some(limit) = measure.limit {
            let bar = format!("≤ {}, {}", value(limit, measure.unit), verdict(Bar::AtMost(limit), ours));
            rows.push(row(&case, [&told, "", "", "", &bar, &ours_admitted, ""]));
            continue;
        }
        for peer in &compared.peers {
            let reach = peer.bars.get(i).copied().flatten();
            rows.push(match &peer.measured {
                Ok(measured) => {
                    let of_one = (measured.summaries.get(i), peer.ratios.get(i));
                    let (Some(&its), Some(&ratio)) = of_one else { continue };
                    let bar = reach.map(|reach| format!("{}, {}", bar(reach), verdict(reach, ratio)));
                    let (its, ratio) = (summary(its, measure.unit), self::ratio(ratio));
                    let admitted = accuracy(&measured.accuracy);
                    let bar = bar.unwrap_or_default();
                    row(&case, [&told, &peer.name, &its, &ratio, &bar, &ours_admitted, &admitted])
                }
                Err(error) => {
                    let why = format!("not measured: {}", chain(error));
                    let bar = reach.map(bar).unwrap_or_default();
                    row(&case, [&told, &peer.name, &why, "", &bar, &ours_admitted, ""])
                }
            });
        }
    }
    rows
}

fn row(case: &str, cells: [&str; 7]) -> Row {
    std::array::from_fn(|i| if i == 0 { case } else { cells[i - 1] }.replace('|', "\\|"))
}

/// All rows under their titles, as Markdown.
pub(crate) fn markdown(outcomes: &[Outcome]) -> String {
    let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
    let mut table = line(&TITLES) + &line(&["---"; 8]);
    for row in outcomes.iter().flat_map(rows) {
        table += &line(&row.each_ref().map(String::as_str));
    }
    table
}

#[cfg(test)]
pub(super) mod tests {
    use anyhow::anyhow;

    use super::*;
    use crate::case::{Accuracy, Bar, Measure, Promise, Unit};
    use crate::rounds::{Compared, Measured, PeerOutcome, Summary};

    const MEASURES: &[Measure] = &[
        Measure::new("takes", Unit::PerSecond),
        Measure { limit: Some(64.0), ..Measure::new("memory", Unit::Bytes) },
    ];

    fn measured(values: [f64; 2], admitted: u64) -> Measured {
        let summary = |value: f64| Summary { median: value, lowest: value, highest: value * 1.1 };
        let accuracy = Ok(Some(Accuracy { admitted, allowed: 50 }));
        Measured { summaries: values.map(summary).to_vec(), accuracy }
    }

    /// A case in which Admit is twice as fast as a peer that admits too much, and another is not here.
    pub(in crate::report) fn outcome() -> Outcome {
        let peer = |name: &str, least: f64, measured| PeerOutcome {
            name: name.to_owned(),
            bars: vec![Some(Bar::AtLeast(least)), None],
            measured,
            ratios: vec![Summary { median: 2.0, lowest: 1.4, highest: 2.1 }; 2],
        };
        let peers = vec![
            peer("slow", 1.5, Ok(measured([1_000.0, 10.0], 62))),
            peer("fast", 3.0, Ok(measured([1_000.0, 10.0], 50))),
            peer("gone", 2.0, Err(anyhow!("not|here"))),
        ];
        let measured = Ok(Compared { ours: measured([2_000.0, 80.0], 50), peers });
        Outcome { name: "case".to_owned(), measures: MEASURES, promise: Promise::Exact, measured }
    }

    #[test]
    fn a_row_tells_both_sides_the_bar_and_both_accuracies() {
        let told = markdown(&[outcome()]);
        let ours = "| case: takes | 2,000/s (10 %)";
        let rows: Vec<&str> = told.lines().skip(2).collect();
        let right = "1.000 (50 of 50)";
        assert_eq!(
            rows,
            [
                format!(
                    "{ours} | slow | 1,000/s (10 %) | 2 (1.40–2.10) | ≥ 1.50, met, not in each round | {right} | 1.240 (62 of 50) |"
                ),
                format!(
                    "{ours} | fast | 1,000/s (10 %) | 2 (1.40–2.10) | ≥ 3, **missed** | {right} | {right} |"
                ),
                format!("{ours} | gone | not measured: not\\|here |  | ≥ 2 | {right} |  |"),
                format!("| case: memory | 80 B (10 %) |  |  |  | ≤ 64 B, **missed** | {right} |  |"),
            ]
        );
        assert_eq!(outcome().failure(), None, "a missed bar is no failure");
    }

    #[test]
    fn a_grant_too_many_or_too_few_is_a_failure() {
        for admitted in [49, 51] {
            let mut outcome = outcome();
            outcome.measured.as_mut().unwrap().ours = measured([1.0, 1.0], admitted);
            assert_eq!(outcome.failure().unwrap(), format!("case: {admitted} admitted, 50 allowed"));
        }
    }
}
