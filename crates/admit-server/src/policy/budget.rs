//! The budgets of a policy.

use std::collections::BTreeMap;

use admit::{Budget, Cost, Retention, Scope};
use admit_store::leases::Share;
use toml::de::DeValue;

use super::Server;
use super::problems::{Problems, Span};
use super::section::{Section, Value, Wrong, boolean, list, one_of, parsed};
use super::sources::{COST_FORMS, Carrier, CostSource, KEY_FORMS, KeyPart, KeySource};

/// A budget of the policy, under the scope that is its name.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetRule {
    /// Its name.
    pub scope: Scope,
    /// How much a caller has whom neither its plan nor its tenant gives another.
    pub budget: Budget,
    /// How much the callers of a plan have.
    pub plans: BTreeMap<String, Budget>,
    /// How much the callers of a tenant have, whatever its plan.
    pub tenants: BTreeMap<String, Budget>,
    /// Whose bucket a request is charged on.
    pub by: KeySource,
    /// What a caller of `budget` reads that is refused: it is written once.
    reason: String,
    /// How much a request costs.
    pub cost: CostSource,
    /// Whether a replay of an idempotent request is charged as well.
    pub spent_by_replays: bool,
    /// What happens while the store cannot be asked.
    pub when_unavailable: WhenUnavailable,
    /// Whether a refusal counts.
    pub mode: Mode,
    /// How much of a bucket each process may hold and spend in memory; nothing if each charge asks the store.
    pub lease: Option<Share>,
}

/// What happens to requests while the store cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnavailable {
    /// They are answered with 503.
    Refuse,
    /// They run, and are counted.
    Admit,
}

/// Whether a budget's refusals count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A request that is refused does not run.
    Enforce,
    /// It runs; what would have been refused is counted. The budget has buckets of its own.
    Shadow,
}

impl BudgetRule {
    /// How much a caller has: its tenant's own budget, else its plan's, else the one of the rule.
    pub fn budget_of(&self, tenant: Option<&str>, plan: Option<&str>) -> Budget {
        let own = tenant.and_then(|tenant| self.tenants.get(tenant));
        let planned = || plan.and_then(|plan| self.plans.get(plan));
        own.or_else(planned).copied().unwrap_or(self.budget)
    }

    /// What a caller reads that is refused, who has this much.
    pub fn reason_of(&self, budget: Budget) -> String {
        if budget == self.budget { self.reason.clone() } else { reason(budget, &self.by) }
    }

    /// An enforced budget of one token a request.
    pub(super) fn plain(scope: Scope, budget: Budget, by: KeyPart) -> Self {
        let by = KeySource { parts: vec![by] };
        Self {
            reason: reason(budget, &by),
            scope,
            budget,
            plans: BTreeMap::new(),
            tenants: BTreeMap::new(),
            by,
            cost: CostSource::Constant(Cost::ONE),
            spent_by_replays: false,
            when_unavailable: WhenUnavailable::Refuse,
            mode: Mode::Enforce,
            lease: None,
        }
    }

    /// Whether it takes the body to tell whose bucket it is, or the cost.
    pub fn asks_for_body(&self) -> bool {
        self.by.asks_for_body() || matches!(self.cost, CostSource::Carried { from: Carrier::Json(_), .. })
    }

    pub(super) fn read<'a>(
        name: &str,
        span: Span,
        value: Value<'a>,
        server: &Server,
        problems: &'a Problems,
    ) -> Option<Self> {
        let scope = name.parse::<Scope>();
        if let Err(error) = &scope {
            problems.add(span, error.to_string(), "");
        }
        let section = Section::of(format!("budget {name:?}"), value, problems);
        let mut section = section.map_err(|wrong| wrong.note(problems)).ok()?;
        let checked = |value| fits(value, server.retention);
        let budget = section.required("rate", "\"100/hour\"", checked);
        let sizes = |name: &'a str, _: Span, value| {
            let size = checked(value).map_err(|wrong| wrong.note(problems)).ok()?;
            Some((name.to_owned(), size))
        };
        let plans: BTreeMap<_, _> = section.each("plans", sizes).into_iter().collect();
        let tenants: BTreeMap<_, _> = section.each("tenants", sizes).into_iter().collect();
        let by = section.required("by", "\"api_key\"", |value| key_source(value, problems));
        let cost = section.member("cost", |value| cost(value, problems));
        let cost = cost.unwrap_or(CostSource::Constant(Cost::ONE));
        let spent_by_replays = section.member("spent_by_replays", boolean);
        let unavailable = [("refuse", WhenUnavailable::Refuse), ("admit", WhenUnavailable::Admit)];
        let when_unavailable = section.member("when_unavailable", one_of(&unavailable));
        if let Some(source) = &by {
            server.check_identity(source, &format!("budget {name:?}"), &section.span_of("by"), problems);
        }
        let mode = section.member("mode", one_of(&[("enforce", Mode::Enforce), ("shadow", Mode::Shadow)]));
        let lease = section.member("lease", parsed::<Share>("a share of the burst, as in \"5%\""));
        if let (Some(share), Some(budget)) = (lease, budget) {
            let span = section.span_of("lease");
            let sizes = [budget].into_iter().chain(plans.values().copied()).chain(tenants.values().copied());
            if let Some(least) = sizes.min_by(|one, other| share.of(*one).total_cmp(&share.of(*other))) {
                check_lease(share, least, &cost, span.clone(), problems);
            }
            if let Some(by) = &by {
                check_one_size(&plans, &tenants, by, span, problems);
            }
        }
        section.finish();
        let (budget, by) = (budget?, by?);
        Some(Self {
            reason: reason(budget, &by),
            scope: scope.ok()?,
            budget,
            plans,
            tenants,
            by,
            cost,
            spent_by_replays: spent_by_replays.unwrap_or(false),
            when_unavailable: when_unavailable.unwrap_or(WhenUnavailable::Refuse),
            mode: mode.unwrap_or(Mode::Enforce),
            lease,
        })
    }
}

impl BudgetRule {
    /// What to say of a budget that no request fits.
    pub(super) fn never_granted(&self) -> Option<String> {
        let CostSource::Constant(cost) = self.cost else { return None };
        let holds = self.sizes().map(|size| size.burst().tokens()).fold(0.0, f64::max);
        (cost.tokens() > holds).then(|| {
            format!(
                "budget {:?} is never granted: a request costs {:?}, and its bucket holds {holds:?}; give it a larger burst, \
                 as in \"{} burst 100\"",
                self.scope.as_str(),
                cost.tokens(),
                self.budget.rate(),
            )
        })
    }

    /// All that a bucket of it may be held to.
    pub fn sizes(&self) -> impl Iterator<Item = Budget> {
        [self.budget].into_iter().chain(self.plans.values().copied()).chain(self.tenants.values().copied())
    }
}

fn reason(budget: Budget, by: &KeySource) -> String {
    format!("{budget} by {by}")
}

/// A slice has to be for more than the request that it is taken for.
fn check_lease(share: Share, budget: Budget, cost: &CostSource, span: Span, problems: &Problems) {
    let tokens = share.of(budget);
    if let CostSource::Constant(cost) = cost
        && tokens < 2.0 * cost.tokens()
    {
        let burst = budget.burst();
        let message =
            format!("{share} of a burst of {burst} is {tokens}, which is less than two requests cost");
        problems.add(span, message, "leave lease out, or give it a larger share");
    }
}

/// What is held of a bucket is held of one budget: callers of different sizes on one bucket would drop it with each take.
fn check_one_size(
    plans: &BTreeMap<String, Budget>,
    tenants: &BTreeMap<String, Budget>,
    by: &KeySource,
    span: Span,
    problems: &Problems,
) {
    let is_by = |part| by.parts.contains(&part);
    let (who, wanted) = if is_by(KeyPart::ApiKey) {
        return;
    } else if !plans.is_empty() {
        ("plans", "api_key") // The keys of a tenant may have different ones.
    } else if !tenants.is_empty() && !is_by(KeyPart::Tenant) {
        ("tenants", "tenant")
    } else {
        return;
    };
    let message = format!("callers of different {who} share a bucket, and a lease is of one size of it");
    problems.add(span, message, format!("leave lease out, or add \"{wanted}\" to by"));
}

/// A rate, whose amount is the burst too, or a rate and a burst: `100/hour`, `100/hour burst 20`.
fn fits(value: Value<'_>, retention: Retention) -> Result<Budget, Wrong> {
    let budget: Budget = parsed("a rate as in \"100/hour\", or \"100/hour burst 20\"")(value)?;
    let (fill, kept) = (budget.time_to_fill(), retention.duration());
    if fill > kept {
        let message =
            format!("an empty bucket takes {fill:?} to fill, and idle buckets are kept for {kept:?}");
        let help = match fill > Retention::LONGEST.duration() {
            true => {
                "raise the rate or lower the burst: no bucket is kept for longer than 400 days".to_owned()
            }
            false => format!(
                "set retention = \"{}h\" at the top of the file",
                fill.as_micros().div_ceil(3_600_000_000)
            ),
        };
        return Err(Wrong::new(value, message, help));
    }
    Ok(budget)
}

pub(super) fn key_source(value: Value<'_>, problems: &Problems) -> Result<KeySource, Wrong> {
    let wanted = format!("one or a list of {KEY_FORMS}");
    let mut seen: Vec<KeyPart> = Vec::new();
    let parts = list(value, problems, |value| {
        let part = parsed::<KeyPart>(&wanted)(value)?;
        if seen.contains(&part) {
            return Err(Wrong::new(value, format!("{part} stands twice"), "name each part once"));
        }
        seen.push(part.clone());
        Ok(part)
    });
    match value.get_ref().as_array().is_some_and(|parts| parts.is_empty()) {
        true => Err(Wrong::new(value, "this names nobody's bucket", format!("write {wanted}"))),
        false => Ok(KeySource { parts }),
    }
}

/// A number, a text that names a source, or a table of a source and what a request without it costs.
fn cost<'a>(value: Value<'a>, problems: &'a Problems) -> Result<CostSource, Wrong> {
    match value.get_ref() {
        DeValue::String(text) if text == "body_bytes" => Ok(CostSource::BodyBytes),
        DeValue::String(_) => {
            let from = parsed(COST_FORMS)(value)?;
            Ok(CostSource::Carried { from, otherwise: None })
        }
        DeValue::Table(_) => {
            let mut section = Section::of("a cost", value, problems)?;
            let from = section.required("from", "\"header:x-cost\"", parsed::<Carrier>(COST_FORMS));
            let otherwise = section.member("otherwise", constant);
            section.finish();
            match from {
                Some(from) => Ok(CostSource::Carried { from, otherwise }),
                None => Ok(CostSource::Constant(Cost::ONE)), // Its problem is noted.
            }
        }
        _ => constant(value).map(CostSource::Constant),
    }
}

fn constant(value: Value<'_>) -> Result<Cost, Wrong> {
    let number = match value.get_ref() {
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n as f64)
        }
        DeValue::Float(number) => number.as_str().parse::<f64>().ok(),
        _ => None,
    };
    let wrong = |message: String| Wrong::new(value, message, format!("write {COST_FORMS}"));
    let number = number.ok_or_else(|| wrong("this is no cost".into()))?;
    Cost::new(number).map_err(|error| wrong(error.to_string()))
}
