//! `admit sweep`.

use admit::{BudgetStore, IdempotencyStore, Now};
use clap::Args;
use miette::IntoDiagnostic;
use serde_json::json;

use super::Output;
use super::place::{Place, block_on};

/// Delete buckets that are full again, and idempotency records past their time.
///
/// A program that serves does this every hour. It can run at any time: what it deletes, the next request would mint.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  admit sweep --policy admit.toml\n  admit sweep --store sqlite:admit.db --json"
)]
pub(super) struct Sweep {
    #[command(flatten)]
    place: Place,
}

impl Sweep {
    pub(super) fn run(self, output: Output) -> miette::Result<()> {
        let policy = self.place.policy()?;
        let (buckets, records) = block_on(async {
            let store = self.place.existing(&policy).await?;
            let buckets = store.delete_idle(Now::Store).await.into_diagnostic()?;
            Ok((buckets, store.delete_expired(Now::Store).await.into_diagnostic()?))
        })?;
        output.tell(&json!({"buckets": buckets, "records": records}), |_| {
            format!("deleted {buckets} buckets that are full again, and {records} records past their time\n")
        });
        Ok(())
    }
}
