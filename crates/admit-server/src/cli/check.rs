//! `admit check`.

use std::path::PathBuf;

use clap::Args;

use super::print;
use crate::source::Source;

#[derive(Debug, Args)]
pub(super) struct Check {
    /// The policy file.
    file: PathBuf,
}

impl Check {
    pub(super) fn run(self) -> miette::Result<()> {
        let (policy, keys) = Source::from(self.file.clone()).read().policy?;
        let (budgets, routes) = (policy.budgets.len(), policy.routes.iter().count());
        print(&format!(
            "{} can be used; budgets: {budgets}, routes: {routes}, descriptors: {}, keys: {}\n",
            self.file.display(),
            policy.descriptors.len(),
            keys.count()
        ));
        Ok(())
    }
}
