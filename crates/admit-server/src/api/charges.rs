//! The charges of a call: on budgets of the policy by their names, or with a budget that travels with the call.

use std::fmt;

use admit::{Budget, BudgetError, BudgetStore, Burst, Charge, Cost, MAX_CHARGES, Rate};
use admit_tower::Quota;
use admit_tower::strict_json::Object;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use serde_json::Value;

use super::Api;
use super::problems::Unfit;
use super::reading::{parsed, step, typed};
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

/// A charge of either kind, as a call that is right has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RightForm {
    #[serde(default, deserialize_with = "present")]
    budget: Option<Text<MAX_NAME_CHARS>>,
    #[serde(default, deserialize_with = "present")]
    scope: Option<Text<MAX_NAME_CHARS>>,
    #[serde(default, deserialize_with = "present")]
    key: Option<Texts>,
    #[serde(default, deserialize_with = "present")]
    cost: Option<CostForm>,
    #[serde(default, deserialize_with = "present")]
    tenant: Option<Text<MAX_NAME_CHARS>>,
    #[serde(default, deserialize_with = "present")]
    plan: Option<Text<MAX_NAME_CHARS>>,
    #[serde(default, deserialize_with = "present")]
    rate: Option<RateForm>,
    #[serde(default, deserialize_with = "present")]
    burst: Option<f64>,
}

/// A charge that was read.
#[derive(Debug)]
enum Form {
    Named(NamedForm),
    Carried(CarriedForm),
}

impl RightForm {
    fn form(self) -> Option<Form> {
        let Self { budget, scope, key, cost, tenant, plan, rate, burst } = self;
        match (budget, scope, key, rate) {
            (Some(budget), None, key, None) if burst.is_none() => {
                Some(Form::Named(NamedForm { budget, key, cost, tenant, plan }))
            }
            (None, Some(scope), Some(key), Some(rate)) if tenant.is_none() && plan.is_none() => {
                Some(Form::Carried(CarriedForm { scope, key, cost, rate, burst }))
            }
            _ => None,
        }
    }
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
    pub(super) fn called(&self, call: &[u8]) -> Result<Called, Unfit> {
        let policy = &self.decider.policy;
        // One charge, which most calls have, is read without a tree of values around it. What is wrong with any other call is
        // found in its tree.
        let right = serde_json::from_slice::<Object<RightForm>>(call).ok();
        let charges = match right.and_then(|Object(right)| right.form()) {
            Some(form) => vec![one(policy, &form, String::new())?],
            None => in_tree(policy, &parsed(call)?)?,
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

fn in_tree(policy: &Policy, call: &Value) -> Result<Vec<(String, Mode, Quota)>, Unfit> {
    let read = |charge, pointer: String| one(policy, &form(charge, &pointer)?, pointer);
    let list = match call.get("charges") {
        None => return Ok(vec![read(call, String::new())?]),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(Unfit::form("/charges", "this is no list of charges")),
    };
    if let Some(other) = call.as_object().and_then(|call| call.keys().find(|name| *name != "charges")) {
        let detail = "beside charges there is nothing: write it into one of them";
        return Err(Unfit::form(step(other), detail));
    }
    if list.is_empty() || list.len() > MAX_CHARGES {
        let detail = format!("{} charges; a call has 1 to {MAX_CHARGES}", list.len());
        return Err(Unfit::form("/charges", detail));
    }
    list.iter().enumerate().map(|(i, charge)| read(charge, format!("/charges/{i}"))).collect()
}

fn form(charge: &Value, pointer: &str) -> Result<Form, Unfit> {
    let has = |name| charge.get(name).is_some();
    match (has("budget"), has("scope")) {
        (true, _) => typed(charge, pointer).map(Form::Named),
        (false, true) => typed(charge, pointer).map(Form::Carried),
        (false, false) if charge.is_object() => {
            let detail = "this names neither a budget of the policy nor a scope with its rate";
            Err(Unfit::form(pointer, detail))
        }
        (false, false) => Err(Unfit::form(pointer, "this is no object")),
    }
}

fn one(policy: &Policy, form: &Form, pointer: String) -> Result<(String, Mode, Quota), Unfit> {
    let (mode, quota) = match form {
        Form::Named(form) => named(policy, form, &pointer)?,
        Form::Carried(form) => (Mode::Enforce, carried(policy, form, &pointer)?),
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

    /// Whether anything is held to.
    pub(super) fn is_held(&self) -> bool {
        self.charges.iter().any(|(_, mode, _)| *mode == Mode::Enforce)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// There are two ways to read a call, so that they could differ.
    fn read_alike(call: &str) -> Option<String> {
        let in_tree = parsed(call.as_bytes()).ok().and_then(|call| form(&call, "").ok());
        let at_once = serde_json::from_str::<Object<RightForm>>(call).ok();
        let at_once = at_once.and_then(|Object(right)| right.form()).map(|form| format!("{form:?}"));
        assert_eq!(at_once, in_tree.map(|form| format!("{form:?}")), "{call}");
        at_once
    }

    #[test]
    fn a_call_with_any_members_is_read_at_once_as_in_its_tree() {
        let members: [(&str, &[&str]); 9] = [
            ("budget", &["\"a\"", "7"]),
            ("scope", &["\"s\"", "null"]),
            ("key", &["\"k\"", "[\"k\", \"\\u00e9\"]", "null"]),
            ("cost", &["2", "-1"]),
            ("tenant", &["\"t\"", "null"]),
            ("plan", &["\"p\""]),
            ("rate", &["1e2", "\"1/hour burst 3\"", "true"]),
            ("burst", &["3.5", "\"3\""]),
            ("other", &["1"]),
        ];
        let mut calls = vec![String::new()];
        for (member, values) in members {
            let with = |call: &String| {
                let each = values.iter().map(|value| format!("{call}, \"{member}\": {value}"));
                each.collect::<Vec<_>>()
            };
            let more: Vec<String> = calls.iter().flat_map(with).collect();
            calls.extend(more);
        }
        let read =
            calls.iter().filter_map(|call| read_alike(&format!("{{{}}}", call.trim_start_matches(", "))));
        // Of a budget: a key in two forms or none, with or without a cost, a tenant, a plan. Of a scope: a key in two
        // forms, with or without a cost, a rate in two forms, with or without a burst.
        assert_eq!(read.count(), 3 * 2 * 2 * 2 + 2 * 2 * 2 * 2);
    }

    #[test]
    fn a_call_of_another_shape_is_read_at_once_as_in_its_tree() {
        assert!(read_alike(" { \"key\" : \"k\" , \"budget\" : \"a\" } ").is_some());
        for wrong in [r#"[{"budget":"a"}]"#, r#"{"budget":"a","budget":"a"}"#, r#"{"budget":"a"}{}"#, "7", ""]
        {
            assert_eq!(read_alike(wrong), None);
        }
    }
}
