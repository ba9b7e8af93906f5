//! The table: a row for each measure and each peer.

use super::value::{accuracy, bar, number, summary, value};
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
    let ours_admitted = accuracy(compared.ours.accuracy);
    let mut rows = Vec::new();
    for (i, measure) in outcome.measures.iter().enumerate() {
        let Some(&ours) = compared.ours.summaries.get(i) else { continue };
        let case = format!("{name}: {}", measure.what);
        let told = summary(ours, measure.unit);
        if let Some(limit) = measure.limit {
            let bar = format!("≤ {}, {}", value(limit, measure.unit), verdict(ours.median <= limit));
            rows.push(row(&case, [&told, "", "", "", &bar, &ours_admitted, ""]));
            continue;
        }
        for peer in &compared.peers {
            let reach = peer.bars.get(i).copied().flatten();
            let its = peer.measured.as_ref().map(|measured| (measured, measured.summaries.get(i)));
            rows.push(match its {
                Ok((measured, Some(&its))) => {
                    let ratio = ours.median / its.median;
                    let bar = reach.map(|reach| format!("{}, {}", bar(reach), verdict(reach.is_met(ratio))));
                    let (its, ratio) = (summary(its, measure.unit), number(ratio));
                    let admitted = accuracy(measured.accuracy);
                    let bar = bar.unwrap_or_default();
                    row(&case, [&told, &peer.name, &its, &ratio, &bar, &ours_admitted, &admitted])
                }
                Ok((_, None)) => continue,
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

fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "**missed**" }
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
