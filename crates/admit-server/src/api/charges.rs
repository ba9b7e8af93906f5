//! The charges of a call: on budgets of the policy by their names, or with a budget that travels with the call.

use std::fmt;

use admit::{Budget, BudgetError, BudgetStore, Burst, Charge, Cost, MAX_CHARGES, Rate};
use admit_tower::Quota;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use serde_json::Value;

use super::Api;
use super::problems::Unfit;
use super::reading::{step, typed};
use super::text::{Text, Texts, present};
use crate::engine::{Charges, Named, NamedError, of_text};
use crate::policy::{Mode, Policy};

/// The longest name of a budget, a tenant or a plan, in characters.
pub(super) const MAX_NAME_CHARS: usize = 255;

/// A charge on a budget of the policy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedForm {
    budget: Text<MAX_NAME_CHARS>,
    #[serde(default, deserialize_with = "present")]
    key: Option<Texts>,
    #[serde(default, deserialize_with = "present")]
    cost: Option<CostForm>,
    #[serde(default, deserialize_with = "present")]
    tenant: Option<Text<MAX_NAME_CHARS>>,
    #[serde(default, deserialize_with = "present")]
    plan: Option<Text<MAX_NAME_CHARS>>,
}

/// A charge on a budget that travels with the call.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CarriedForm {
    scope: Text<MAX_NAME_CHARS>,
    key: Texts,
    #[serde(default, deserialize_with = "present")]
    cost: Option<CostForm>,
    rate: RateForm,
    #[serde(default, deserialize_with = "present")]
    burst: Option<f64>,
}

#[derive(Debug)]
struct CostForm(Cost);

impl<'de> Deserialize<'de> for CostForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cost::new(f64::deserialize(deserializer)?).map(Self).map_err(D::Error::custom)
    }
}

/// Tokens a second, or a whole budget as text.
#[derive(Debug)]
enum RateForm {
    PerSecond(f64),
    Text(String),
}

impl<'de> Deserialize<'de> for RateForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RateVisitor)
    }
}

struct RateVisitor;

impl Visitor<'_> for RateVisitor {
    type Value = RateForm;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tokens a second with a burst beside them, or a text as in \"100/hour burst 20\"")
    }

    fn visit_f64<E: Error>(self, tokens: f64) -> Result<RateForm, E> {
        Ok(RateForm::PerSecond(tokens))
    }

    fn visit_i64<E: Error>(self, tokens: i64) -> Result<RateForm, E> {
        self.visit_f64(tokens as f64)
    }

    fn visit_u64<E: Error>(self, tokens: u64) -> Result<RateForm, E> {
        self.visit_f64(tokens as f64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<RateForm, E> {
        Ok(RateForm::Text(text.to_owned()))
    }
}

impl CarriedForm {
    fn budget(&self, pointer: &str) -> Result<Budget, Unfit> {
        let unfit = |member: &str, detail: String| Unfit::meaning(format!("{pointer}/{member}"), detail);
        match (&self.rate, self.burst) {
            (RateForm::Text(text), None) => {
                text.parse().map_err(|error: BudgetError| unfit("rate", error.to_string()))
            }
            (RateForm::Text(_), Some(_)) => {
                let detail = "the rate is a text, and has the burst too: write \"100/hour burst 20\" there";
                Err(unfit("burst", detail.to_owned()))
            }
            (RateForm::PerSecond(tokens), Some(burst)) => {
                let rate = Rate::per_second(*tokens).map_err(|error| unfit("rate", error.to_string()))?;
                let burst = Burst::new(burst).map_err(|error| unfit("burst", error.to_string()))?;
                Ok(Budget::new(rate, burst))
            }
            (RateForm::PerSecond(_), None) => {
                Err(unfit("rate", "a rate in tokens a second needs a burst in tokens beside it".to_owned()))
            }
        }
    }
}

/// The charges of a call, in its order.
#[derive(Debug)]
pub(super) struct Called {
    /// Each with the place where it stands.
    charges: Vec<(String, Mode, Quota)>,
}

impl Api {
    /// Reads the charges, and checks them as the store would.
    pub(super) fn called(&self, call: &Value) -> Result<Called, Unfit> {
        let policy = &self.decider.policy;
        let charges = match call.get("charges") {
            None => vec![one(policy, call, String::new())?],
            Some(Value::Array(list)) => {
                if let Some(other) =
                    call.as_object().and_then(|call| call.keys().find(|name| *name != "charges"))
                {
                    let detail = "beside charges there is nothing: write it into one of them";
                    return Err(Unfit::form(step(other), detail));
                }
                if list.is_empty() || list.len() > MAX_CHARGES {
                    let detail = format!("{} charges; a call has 1 to {MAX_CHARGES}", list.len());
                    return Err(Unfit::form("/charges", detail));
                }
                let each = list.iter().enumerate();
                each.map(|(i, charge)| one(policy, charge, format!("/charges/{i}")))
                    .collect::<Result<_, _>>()?
            }
            Some(_) => return Err(Unfit::form("/charges", "this is no list of charges")),
        };
        let rules = self.decider.store.rules();
        for (pointer, _, quota) in &charges {
            rules.check(&quota.charge).map_err(|error| Unfit::meaning(pointer.clone(), error.to_string()))?;
        }
        let all: Vec<Charge> = charges.iter().map(|(_, _, quota)| quota.charge.clone()).collect();
        rules.prepare_refund(&all).map_err(|error| Unfit::meaning("/charges", error.to_string()))?;
        Ok(Called { charges })
    }
}

fn one(policy: &Policy, charge: &Value, pointer: String) -> Result<(String, Mode, Quota), Unfit> {
    let has = |name| charge.get(name).is_some();
    let (mode, quota) = match (has("budget"), has("scope")) {
        (true, _) => named(policy, &typed(charge, &pointer)?, &pointer)?,
        (false, true) => (Mode::Enforce, carried(policy, &typed(charge, &pointer)?, &pointer)?),
        (false, false) if charge.is_object() => {
            let detail = "this names neither a budget of the policy nor a scope with its rate";
            return Err(Unfit::form(pointer, detail));
        }
        (false, false) => return Err(Unfit::form(pointer, "this is no object")),
    };
    Ok((pointer, mode, quota))
}

fn named(policy: &Policy, form: &NamedForm, pointer: &str) -> Result<(Mode, Quota), Unfit> {
    let Text(name) = &form.budget;
    let Some(rule) = policy.budgets.iter().find(|rule| rule.scope.as_str() == name) else {
        let fix = policy.budget_like(name);
        return Err(Unfit::meaning(
            format!("{pointer}/budget"),
            format!("there is no budget {name:?}; {fix}"),
        ));
    };
    let named = Named {
        key: form.key.as_ref().map_or(&[], |Texts(parts)| parts),
        cost: form.cost.as_ref().map(|CostForm(cost)| *cost),
        tenant: form.tenant.as_ref().map(|Text(tenant)| tenant.as_str()),
        plan: form.plan.as_ref().map(|Text(plan)| plan.as_str()),
    };
    let quota = named.quota(rule).map_err(|error| {
        let member = if error == NamedError::Cost { "cost" } else { "key" };
        Unfit::meaning(format!("{pointer}/{member}"), error.to_string())
    })?;
    Ok((rule.mode, quota))
}

fn carried(policy: &Policy, form: &CarriedForm, pointer: &str) -> Result<Quota, Unfit> {
    let Text(name) = &form.scope;
    let decisions = &policy.server.decisions;
    let Some(scope) = decisions.scopes.iter().find(|scope| scope.as_str() == name) else {
        let is_budget = policy.budgets.iter().any(|rule| rule.scope.as_str() == name);
        let fix = match is_budget {
            true => format!("it is a budget of the policy: write \"budget\": {name:?}, without a rate"),
            false => decisions.suggestion(name),
        };
        let detail = format!("no scope {name:?} is left to callers; {fix}");
        return Err(Unfit::meaning(format!("{pointer}/scope"), detail));
    };
    let Texts(parts) = &form.key;
    let [key] = parts.as_slice() else {
        return Err(Unfit::meaning(format!("{pointer}/key"), "the key of a scope is one text"));
    };
    let budget = form.budget(pointer)?;
    let quota = Quota::new(scope.clone(), of_text(key), budget, format!("{budget} of {scope}"));
    Ok(quota.cost(form.cost.as_ref().map_or(Cost::ONE, |CostForm(cost)| *cost)))
}

impl Called {
    /// What is to be taken.
    pub(super) fn charges(&self) -> Charges {
        let of = |wanted| {
            let charges = self.charges.iter().filter(move |(_, mode, _)| *mode == wanted);
            charges.map(|(_, _, quota)| quota.clone()).collect()
        };
        Charges { quotas: of(Mode::Enforce), shadows: of(Mode::Shadow) }
    }

    /// Each charge in the order of the call, with what `of` tells of those that are held, in the order of
    /// [`Charges::quotas`].
    pub(super) fn told<T>(
        &self,
        mut of: impl FnMut(usize, &Quota) -> Option<T>,
    ) -> Vec<(&Quota, Mode, Option<T>)> {
        let mut held = 0..;
        let each = self.charges.iter().map(|(_, mode, quota)| {
            let told = match mode {
                Mode::Enforce => held.next().and_then(|i| of(i, quota)),
                Mode::Shadow => None,
            };
            (quota, *mode, told)
        });
        each.collect()
    }
}
