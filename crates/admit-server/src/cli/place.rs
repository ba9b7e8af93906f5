//! Which policy and which store a command is about.

use std::future::Future;
use std::path::PathBuf;

use admit::Causes;
use admit_store::AnyStore;
use clap::Args;
use miette::{IntoDiagnostic, WrapErr, miette};

use crate::policy::{Policy, StoreUrl};
use crate::source::{Origin, Overrides, Source};

/// The same as of the program that serves.
#[derive(Debug, Args)]
pub(super) struct Place {
    /// The policy file that the program serves by. Without one, the starter policy.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The store, in place of what the policy says.
    #[arg(long, value_name = "URL", env = "ADMIT_STORE", hide_env_values = true)]
    store: Option<StoreUrl>,
}

impl Place {
    pub(super) fn new(policy: Option<PathBuf>, store: Option<StoreUrl>) -> Self {
        Self { policy, store }
    }

    /// The policy, checked.
    pub(super) fn policy(&self) -> miette::Result<Policy> {
        Ok(self.source().read().policy?.0)
    }

    /// The policy without its keys, whose file may not be there yet.
    pub(super) fn policy_alone(&self) -> miette::Result<Policy> {
        self.source().read_policy()
    }

    fn source(&self) -> Source {
        let origin = self.policy.clone().map_or(Origin::Starter, Origin::File);
        Source { origin, overrides: Overrides { store: self.store.clone(), ..Overrides::default() } }
    }

    /// The store as it is there.
    pub(super) async fn existing(&self, policy: &Policy) -> miette::Result<AnyStore> {
        let (url, rules) = (&policy.server.store, policy.rules().into_diagnostic()?);
        AnyStore::open_existing(url.reveal(), rules).await.map_err(|error| match error {
            error @ admit_store::OpenExistingError::Memory => miette!(
                help = "send POST /buckets/reset to the admin listener of that program, or name a store with --store",
                "{error}"
            ),
            error => miette!(help = "name the policy with --policy FILE, or the store with --store URL", "{}", Causes(&error))
                .wrap_err(format!("the store {url} cannot be opened")),
        })
    }
}

/// Runs what needs a runtime.
pub(super) fn block_on<T>(work: impl Future<Output = miette::Result<T>>) -> miette::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.into_diagnostic().wrap_err("the runtime cannot be started")?.block_on(work)
}
