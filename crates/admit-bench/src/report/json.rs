//! All that was measured, for programs.

use serde_json::{Value, json};

use crate::case::Bar;
use crate::machine::Machine;
use crate::rounds::{Measured, Outcome, chain};

/// The machine and every case.
pub(crate) fn json(machine: &Machine, outcomes: &[Outcome]) -> Value {
    json!({ "machine": machine, "cases": outcomes.iter().map(case).collect::<Vec<_>>() })
}

fn case(outcome: &Outcome) -> Value {
    let measures: Vec<Value> = outcome
        .measures
        .iter()
        .map(|measure| json!({ "what": measure.what, "unit": format!("{:?}", measure.unit), "limit": measure.limit }))
        .collect();
    let compared = match &outcome.measured {
        Ok(compared) => compared,
        Err(error) => return json!({ "case": outcome.name, "not_measured": chain(error) }),
    };
    let peers: Vec<Value> = compared
        .peers
        .iter()
        .map(|peer| {
            let bars: Vec<Value> = peer.bars.iter().map(|bar| bar.map_or(Value::Null, self::bar)).collect();
            match &peer.measured {
                Ok(measured) => {
                    json!({ "name": peer.name, "bars": bars, "ratios": peer.ratios, "measured": side(measured) })
                }
                Err(error) => json!({ "name": peer.name, "bars": bars, "not_measured": chain(error) }),
            }
        })
        .collect();
    json!({ "case": outcome.name, "measures": measures, "admit": side(&compared.ours), "peers": peers })
}

fn side(measured: &Measured) -> Value {
    let accuracy = match &measured.accuracy {
        Ok(accuracy) => json!(accuracy),
        Err(error) => json!({ "not_counted": chain(error) }),
    };
    json!({ "values": measured.summaries, "accuracy": accuracy })
}

fn bar(bar: Bar) -> Value {
    match bar {
        Bar::AtLeast(least) => json!({ "at_least": least }),
        Bar::AtMost(most) => json!({ "at_most": most }),
    }
}
