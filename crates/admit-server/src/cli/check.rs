//! `admit check`.

use std::path::PathBuf;

use clap::Args;
use miette::IntoDiagnostic;

use super::print;
use super::serve::read_policy;
use crate::certificates::Certificates;

#[derive(Debug, Args)]
pub(super) struct Check {
    /// The policy file.
    file: PathBuf,
}

impl Check {
    pub(super) fn run(self) -> miette::Result<()> {
        let (policy, keys) = read_policy(&self.file)?;
        Certificates::load(&policy.server).into_diagnostic()?;
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
