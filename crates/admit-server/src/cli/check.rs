//! `admit check`.

use std::fmt;
use std::path::PathBuf;

use admit_store::leases::Share;
use clap::Args;
use miette::IntoDiagnostic;
use serde_json::{Value, json};

use super::{Output, print};
use crate::certificates::Certificates;
use crate::gateway::Gateway;
use crate::metrics::Metrics;
use crate::policy::{BudgetRule, PolicyErrors};
use crate::source::Source;

/// Tell everything that is wrong with a policy file, its keys and its certificates.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  admit check admit.toml\n  admit check --json admit.toml   # for editors and CI"
)]
pub(super) struct Check {
    /// The policy file.
    file: PathBuf,
}

impl Check {
    pub(super) fn run(self, output: Output) -> miette::Result<()> {
        let file = self.file.display().to_string();
        let checked = Source::from(self.file).read().policy;
        let report = match checked.and_then(|(policy, keys)| {
            Certificates::load(&policy.server).into_diagnostic()?;
            Gateway::new(&policy, Metrics::default()).into_diagnostic()?; // Reads the roots for its upstreams.
            Ok((policy, keys))
        }) {
            Ok((policy, keys)) => {
                let (budgets, routes) = (policy.budgets.len(), policy.routes.iter().count());
                let (descriptors, keys) = (policy.descriptors.len(), keys.count());
                let leased: Vec<_> = policy.budgets.iter().filter_map(leased).collect();
                let warnings = policy.warnings();
                let told = json!({
                    "file": file, "usable": true, "problems": [], "warnings": warnings,
                    "budgets": budgets, "routes": routes, "descriptors": descriptors, "keys": keys,
                    "leases": leased.iter().map(Lease::json).collect::<Vec<_>>(),
                });
                output.tell(&told, |_| {
                    let leases: String = leased.iter().map(|lease| format!("{lease}\n")).collect();
                    let warnings: String =
                        warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
                    format!(
                        "{file} can be used; budgets: {budgets}, routes: {routes}, descriptors: {descriptors}, \
                         keys: {keys}\n{leases}{warnings}"
                    )
                });
                return Ok(());
            }
            Err(report) => report,
        };
        if output.json {
            let told = json!({"file": file, "usable": false, "problems": problems(&report)});
            print(&format!("{told:#}\n"));
        }
        Err(report)
    }
}

/// A budget of which each process holds a part.
struct Lease<'a> {
    budget: &'a BudgetRule,
    share: Share,
}

fn leased(budget: &BudgetRule) -> Option<Lease<'_>> {
    budget.lease.map(|share| Lease { budget, share })
}

impl Lease<'_> {
    /// Of its largest size.
    fn tokens(&self) -> f64 {
        self.budget.sizes().map(|size| self.share.of(size)).fold(0.0, f64::max)
    }

    fn json(&self) -> Value {
        let tokens = self.tokens();
        json!({"budget": self.budget.scope.as_str(), "share": self.share.to_string(), "tokens": tokens})
    }
}

impl fmt::Display for Lease<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { budget: BudgetRule { scope, .. }, share } = self;
        let tokens = self.tokens();
        write!(
            f,
            "{scope} is leased: each process may hold {share} of a bucket, {tokens} tokens that others lack, and what was \
             given back to it"
        )
    }
}

/// Each with its place, if it has one.
fn problems(report: &miette::Report) -> Vec<Value> {
    match report.downcast_ref::<PolicyErrors>() {
        Some(errors) => errors
            .problems()
            .iter()
            .map(|problem| {
                json!({
                    "message": problem.to_string(), "help": problem.help(),
                    "line": problem.line(), "column": problem.column(),
                })
            })
            .collect(),
        None => {
            let message = report.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
            let help = report.help().map(|help| help.to_string());
            vec![json!({"message": message, "help": help})]
        }
    }
}
