//! `admit sweep`.

use std::path::PathBuf;

use admit::{BudgetStore, IdempotencyStore, Now};
use clap::Args;
use miette::{IntoDiagnostic, miette};
use serde_json::json;

use super::Output;
use super::place::{Place, block_on};
use crate::policy::StoreUrl;

/// Delete buckets that are full again, and idempotency records past their time.
///
/// A program that serves does this every hour. It can run at any time: what it deletes, the next request would mint, as
/// nothing goes that was idle for less than the policy's retention, or than the longest one that the store was opened with.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  admit sweep --policy admit.toml\n  admit sweep --policy admit.toml --store postgres://db/app --json"
)]
pub(super) struct Sweep {
    /// The policy file that the program serves by.
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// The store, in place of what the policy says.
    #[arg(long, value_name = "URL", env = "ADMIT_STORE", hide_env_values = true)]
    store: Option<StoreUrl>,
}

impl Sweep {
    pub(super) fn run(self, output: Output) -> miette::Result<()> {
        let place = Place::new(Some(self.policy), self.store);
        let policy = place.policy()?;
        if policy.server.store.reveal() == "memory:" {
            return Err(miette!(
                help = "name a store with --store, if another is meant",
                "a store in memory is that of its process, which sweeps it every hour by itself"
            ));
        }
        let (buckets, records) = block_on(async {
            let store = place.existing(&policy).await?;
            let buckets = store.delete_idle(Now::Store).await.into_diagnostic()?;
            Ok((buckets, store.delete_expired(Now::Store).await.into_diagnostic()?))
        })?;
        output.tell(&json!({"buckets": buckets, "records": records}), |_| {
            format!("deleted {buckets} buckets that are full again, and {records} records past their time\n")
        });
        Ok(())
    }
}
