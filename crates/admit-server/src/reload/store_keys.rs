//! API keys that the store has.

use admit::Causes;
use admit_store::{AnyStore, ApiKeysError};
use miette::{IntoDiagnostic, Report, WrapErr};

use super::InForce;
use crate::policy::{Keys, KeysFrom, Policy};

pub(super) async fn read(store: &AnyStore) -> Result<Keys, ApiKeysError> {
    Ok(store.api_keys().await?.into_iter().collect())
}

/// The keys of a policy: those that were read with it, or the store's. While the store is away, those of the policy before
/// stay, if they were the store's too.
pub(super) async fn of(
    policy: &Policy,
    keys: Keys,
    store: &AnyStore,
    before: Option<&InForce>,
) -> Result<Keys, Report> {
    if policy.server.keys != Some(KeysFrom::Store) {
        return Ok(keys);
    }
    let known = before.filter(|before| before.policy.server.keys == Some(KeysFrom::Store));
    match (read(store).await, known) {
        (Err(error @ ApiKeysError::Unavailable(_)), Some(before)) => {
            tracing::warn!(error = %Causes(&error), "API keys were not read anew; those that are known stay");
            Ok((*before.keys).clone())
        }
        (keys, _) => keys.into_diagnostic().wrap_err("the API keys in the store cannot be read"),
    }
}
