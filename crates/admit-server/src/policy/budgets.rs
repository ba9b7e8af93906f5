//! The budgets of a policy, and how its other parts name them.

use admit::MAX_CHARGES;

use super::problems::{Problems, Span};
use super::section::{Section, Value, Wrong, list, suggestion, text};
use super::{BudgetRule, Server};

/// The budgets of a policy that is being read.
#[derive(Debug)]
pub(super) struct Budgets<'a> {
    /// Those without a mistake, in the order of their names.
    pub(super) rules: Vec<BudgetRule>,
    /// The names of all of them.
    names: Vec<&'a str>,
}

impl<'a> Budgets<'a> {
    pub(super) fn read(section: &mut Section<'a>, server: &Server, problems: &'a Problems) -> Self {
        let mut names = Vec::new();
        let mut rules = section.each("budgets", |name, span, value| {
            names.push(name);
            BudgetRule::read(name, span, value, server, problems)
        });
        rules.sort_by(|one, other| one.scope.cmp(&other.scope));
        Self { rules, names }
    }

    /// The positions of the budgets that a list names, with the places where it does. One with a mistake is left out: the
    /// mistake is noted where it is, and nothing is wrong here.
    pub(super) fn named(&self, value: Value<'_>, problems: &Problems) -> Vec<(usize, Span)> {
        let mut seen: Vec<&str> = Vec::new();
        let found = list(value, problems, |value| {
            let name = text(value)?;
            if seen.contains(&name) {
                return Err(Wrong::new(value, format!("{name:?} stands twice"), "name each budget once"));
            }
            seen.push(name);
            if seen.len() == MAX_CHARGES + 1 {
                let message = format!("these are more than {MAX_CHARGES} budgets");
                return Err(Wrong::new(
                    value,
                    message,
                    "a request takes from no more at once: leave some out",
                ));
            }
            let position = self.rules.iter().position(|budget| budget.scope.as_str() == name);
            if position.is_none() && !self.names.contains(&name) {
                let help = match self.names.as_slice() {
                    [] => format!("add [budgets.{name}]"),
                    names => suggestion(name, names.iter().copied()),
                };
                return Err(Wrong::new(value, format!("there is no budget {name:?}"), help));
            }
            Ok(position.map(|position| (position, value.span())))
        });
        found.into_iter().flatten().collect()
    }
}
