//! `admit migrate`.

use std::path::PathBuf;

use admit_store::AnyStore;
use clap::Args;
use miette::{IntoDiagnostic, WrapErr};
use serde_json::json;

use super::Output;
use super::place::{Place, block_on};
use crate::policy::StoreUrl;

/// Make or change the store's tables as this version and the policy need them.
///
/// Does nothing where all is as it should be, so that it may run before every start. `admit serve` does the same; this is for
/// a start whose role may not change tables.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  admit migrate admit.toml\n  admit migrate --store postgres://owner@db/app"
)]
pub(super) struct Migrate {
    /// The policy file. Without one, the starter policy.
    file: Option<PathBuf>,
    /// The store, in place of what the policy says.
    #[arg(long, value_name = "URL", env = "ADMIT_STORE", hide_env_values = true)]
    store: Option<StoreUrl>,
}

impl Migrate {
    pub(super) fn run(self, output: Output) -> miette::Result<()> {
        let policy = Place::new(self.file, self.store).policy()?;
        let (url, rules) = (&policy.server.store, policy.rules().into_diagnostic()?);
        let opened = block_on(async { AnyStore::open(url.reveal(), rules).await.into_diagnostic() });
        let store = opened.wrap_err_with(|| format!("the store {url} cannot be migrated"))?;
        let done = store.migrated();
        output.tell(&json!({"store": url.to_string(), "migrated": done}), |_| match done {
            Some(done) => format!("{url} lacked {done}; it has them now\n"),
            None => format!("{url} is as it should be; nothing was done\n"),
        });
        Ok(())
    }
}
