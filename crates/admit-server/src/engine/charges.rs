//! What one request is charged on several budgets.

use admit_tower::Quota;

use super::{Charging, Facts, Malformed};
use crate::policy::{BudgetRule, Mode};

/// What one request is charged: on budgets that hold, all or nothing, and on shadows, each apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Charges {
    /// What it has to fit into.
    pub quotas: Vec<Quota>,
    /// What is only counted.
    pub shadows: Vec<Quota>,
}

impl Charges {
    /// The charges of a request of these facts.
    ///
    /// # Errors
    /// [`Malformed`] if it lacks what a cost is taken from. A shadow refuses nobody, whatever the request lacks.
    pub fn of<'b>(
        budgets: impl IntoIterator<Item = &'b BudgetRule>,
        facts: &Facts<'_>,
    ) -> Result<Self, Malformed> {
        let mut charges = Self::default();
        for budget in budgets {
            match budget.mode {
                Mode::Enforce => charges.quotas.push(budget.quota(facts)?),
                Mode::Shadow => charges.shadows.extend(budget.quota(facts)),
            }
        }
        Ok(charges)
    }
}
