//! `admit buckets`.

use std::time::Duration;

use admit::{Bucket, Budget, Clock, Key, Scope, SystemClock};
use clap::{Args, Subcommand};
use miette::{IntoDiagnostic, miette};
use serde::Serialize;
use serde_json::json;

use super::Output;
use super::confirm::confirm;
use super::place::{Place, block_on};
use crate::engine::named_bucket;
use crate::policy::{BudgetRule, Policy};
use crate::text_of_time::rfc3339;

/// Look at buckets, or have one full again.
///
/// A bucket that is not there is full. The level is told by the policy's budget; a plan or a tenant may have another.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  admit buckets list hourly --limit 20 --policy admit.toml\n  \
                        admit buckets show hourly 203.0.113.9 --plan pro\n  admit buckets reset daily ann garden")]
pub(super) enum Buckets {
    /// List the buckets of a budget, page by page, in the order of their keys.
    List(List),
    /// Show one bucket: how much it holds, by which budget, and when it is full.
    Show(Show),
    /// Have one bucket full again: what was spent is forgotten.
    Reset(Reset),
}

#[derive(Debug, Args)]
pub(super) struct List {
    /// The name of the budget.
    scope: String,
    /// How many at the most.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    limit: u16,
    /// Begin behind this key: the last one of the page before.
    #[arg(long, value_name = "UUID")]
    after: Option<String>,
    /// Tell by this budget, as in "100/hour"; a scope that callers bring budgets to has none in the policy.
    #[arg(long)]
    budget: Option<Budget>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
pub(super) struct One {
    /// The name of the budget.
    scope: String,
    /// Whose bucket: a text for each part that the budget is kept by, constants left out; or the UUID that a list shows.
    key: Vec<String>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    one: One,
    /// Tell by the budget of this plan.
    #[arg(long)]
    plan: Option<String>,
    /// Tell by the budget of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Tell by this budget, as in "100/hour"; a scope that callers bring budgets to has none in the policy.
    #[arg(long)]
    budget: Option<Budget>,
}

#[derive(Debug, Args)]
pub(super) struct Reset {
    #[command(flatten)]
    one: One,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

/// A bucket as it is told.
#[derive(Debug, Serialize)]
struct Shown {
    scope: String,
    key: String,
    /// Tokens that are there now.
    level: f64,
    budget: String,
    burst: f64,
    /// Seconds until it is full; zero if it is.
    full_in_seconds: f64,
    /// When it was last debited; nothing if there is no bucket.
    last_debited: Option<String>,
}

impl Shown {
    fn of(scope: &Scope, key: Key, bucket: Option<Bucket>, budget: Budget) -> Self {
        let burst = budget.burst().tokens();
        let level = bucket.map_or(burst, |bucket| bucket.level(budget, SystemClock.now()));
        Self {
            scope: scope.to_string(),
            key: key.to_string(),
            level,
            budget: budget.to_string(),
            burst,
            full_in_seconds: (burst - level) / budget.rate().tokens_per_second(),
            last_debited: bucket.map(|bucket| rfc3339(bucket.refilled_at)),
        }
    }

    fn level(&self) -> String {
        format!("{:.2}", self.level)
    }

    fn full_in(&self) -> String {
        match self.full_in_seconds > 0.0 {
            true => {
                let whole = Duration::try_from_secs_f64(self.full_in_seconds.ceil()).unwrap_or(Duration::MAX);
                jiff::SignedDuration::try_from(whole).map(|time| format!("{time:#}")).unwrap_or_default()
            }
            false => "full".to_owned(),
        }
    }
}

/// A scope of the policy, and its budget if it has one there.
fn find<'p>(policy: &'p Policy, scope: &str) -> miette::Result<(&'p Scope, Option<&'p BudgetRule>)> {
    policy.scope(scope).ok_or_else(|| {
        let names: Vec<&str> = policy.scopes().map(|(known, _)| known.as_str()).collect();
        miette!(
            help = "name the policy with --policy FILE, if it is another",
            "the policy has no budget {scope:?}; it has {}",
            names.join(", ")
        )
    })
}

fn brought(scope: &Scope) -> miette::Report {
    miette!(help = "add --budget, as in --budget 100/hour", "the budgets of {scope} come with its callers")
}

impl One {
    fn key(&self, rule: Option<&BudgetRule>) -> miette::Result<Key> {
        named_bucket(rule, &self.key).into_diagnostic()
    }
}

impl Buckets {
    pub(super) fn run(self, output: Output) -> miette::Result<()> {
        match self {
            Self::List(list) => list.run(output),
            Self::Show(show) => show.run(output),
            Self::Reset(reset) => reset.run(output),
        }
    }
}

impl List {
    fn run(self, output: Output) -> miette::Result<()> {
        let policy = self.place.policy()?;
        let (scope, rule) = find(&policy, &self.scope)?;
        let budget = self.budget.or(rule.map(|rule| rule.budget)).ok_or_else(|| brought(scope))?;
        let (after, limit) = (self.after.as_deref().map(Key::of), usize::from(self.limit));
        let mut page = block_on(async {
            let store = self.place.existing(&policy).await?;
            store.buckets(scope, after, limit + 1).await.into_diagnostic()
        })?;
        let more = page.len() > limit;
        page.truncate(limit);
        let next = page.last().filter(|_| more).map(|(key, _)| key.to_string());
        let shown: Vec<Shown> =
            page.into_iter().map(|(key, bucket)| Shown::of(scope, key, Some(bucket), budget)).collect();
        output.tell(&json!({"buckets": shown, "next": next}), |style| {
            let rows: Vec<[String; 4]> = shown
                .iter()
                .map(|one| {
                    [
                        one.key.clone(),
                        one.level(),
                        one.full_in(),
                        one.last_debited.clone().unwrap_or_default(),
                    ]
                })
                .collect();
            let mut text = style.table(["KEY", "LEVEL", "FULL IN", "LAST DEBITED"], &rows);
            if let Some(next) = &next {
                text += &style.dim(&format!("There are more: --after {next}\n"));
            }
            text
        });
        Ok(())
    }
}

impl Show {
    fn run(self, output: Output) -> miette::Result<()> {
        let policy = self.one.place.policy()?;
        let (scope, rule) = find(&policy, &self.one.scope)?;
        let of_policy = rule.map(|rule| rule.budget_of(self.tenant.as_deref(), self.plan.as_deref()));
        let budget = self.budget.or(of_policy).ok_or_else(|| brought(scope))?;
        let key = self.one.key(rule)?;
        let bucket = block_on(async {
            let store = self.one.place.existing(&policy).await?;
            store.bucket(scope, key).await.into_diagnostic()
        })?;
        let shown = Shown::of(scope, key, bucket, budget);
        output.tell(&shown, |style| {
            let line = |name: &str, what: &str| format!("{} {what}\n", style.dim(&format!("{name:<12}")));
            line("bucket", &format!("{} {}", shown.scope, shown.key))
                + &line("level", &format!("{} of {}", shown.level(), shown.burst))
                + &line("budget", &shown.budget)
                + &line("full in", &shown.full_in())
                + &line(
                    "last debited",
                    shown.last_debited.as_deref().unwrap_or("there is no bucket: it is full"),
                )
        });
        Ok(())
    }
}

impl Reset {
    fn run(self, output: Output) -> miette::Result<()> {
        let policy = self.one.place.policy()?;
        let (scope, rule) = find(&policy, &self.one.scope)?;
        let key = self.one.key(rule)?;
        confirm(
            &format!("Have the bucket {key} of {scope} full again in {}?", policy.server.store),
            self.yes,
        )?;
        let existed = block_on(async {
            let store = self.one.place.existing(&policy).await?;
            let existed = store.delete_bucket(scope, key).await.into_diagnostic()?;
            let _logged = crate::trace::start();
            tracing::warn!(%scope, %key, existed, store = %policy.server.store, "a bucket was reset by the command line");
            Ok(existed)
        })?;
        output.tell(&json!({"scope": scope.as_str(), "key": key.to_string(), "existed": existed}), |_| {
            match existed {
                true => format!("the bucket {key} of {scope} is full again\n"),
                false => format!("there is no bucket {key} of {scope}: it is full\n"),
            }
        });
        Ok(())
    }
}
