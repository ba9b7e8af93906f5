//! The port through which the issuance of sessions is limited.

use std::error::Error;
use std::future::Future;

use crate::fleet::DomainId;

/// Admits issuances, one token of the domain's budget each. How large that budget is may depend on the domain.
pub trait IssuanceLimiter: Clone + Send + Sync + 'static {
    /// Takes an issuance.
    ///
    /// # Errors
    /// [`IssuanceLimitError`].
    fn admit(&self, domain: DomainId) -> impl Future<Output = Result<(), IssuanceLimitError>> + Send;

    /// Gives back an issuance that was admitted and did not take place. If that fails it stays spent.
    fn give_back(&self, domain: DomainId) -> impl Future<Output = ()> + Send;
}

/// Why an issuance was not admitted.
#[derive(Debug, thiserror::Error)]
pub enum IssuanceLimitError {
    /// The budget does not cover it.
    #[error(transparent)]
    Refused(#[from] IssuanceRefused),
    /// The budget could not be evaluated; whether the issuance would have been admitted is not known.
    #[error("the issuance budget could not be evaluated")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
}

/// The domain's budget does not cover the issuance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the domain issues sessions faster than it may")]
pub struct IssuanceRefused;
