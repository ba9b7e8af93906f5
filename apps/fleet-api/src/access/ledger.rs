//! The port through which an issuance happens once per idempotency key.

use std::error::Error;
use std::fmt;
use std::future::Future;

use super::{Session, SessionRequest};
use crate::fleet::IdentityId;

/// Remembers which session an (identity, idempotency key) led to.
pub trait IssuanceLedger: Clone + Send + Sync + 'static {
    /// The right to record what an issuance came to.
    type Run: RunId;

    /// What became of an earlier request with this key; nothing if there was none. Writes nothing.
    ///
    /// # Errors
    /// [`LedgerError`].
    fn look(
        &self,
        key: &IdempotencyKey,
        request: &SessionRequest,
    ) -> impl Future<Output = Result<Option<Earlier>, LedgerError>> + Send;

    /// Claims the key for one issuance.
    ///
    /// # Errors
    /// [`LedgerError`].
    fn claim(
        &self,
        key: &IdempotencyKey,
        request: &SessionRequest,
    ) -> impl Future<Output = Result<Claimed<Self::Run>, LedgerError>> + Send;

    /// Records the session. Only now may it be told to anybody.
    ///
    /// # Errors
    /// [`LedgerError`].
    fn complete(
        &self,
        run: Self::Run,
        session: &Session,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;
}

/// The right to record what an issuance came to.
pub trait RunId: fmt::Debug + Send + 'static {}

/// An operator's own name for a request: requests with one key lead to one session.
#[derive(Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Whose key it is. Another's key of the same text is another key.
    pub identity: IdentityId,
    /// The text, 1 to 255 characters.
    pub text: String,
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({}, …)", self.identity)
    }
}

/// What became of an earlier request.
#[derive(Clone, Debug, PartialEq)]
pub enum Earlier {
    /// It led to this session.
    Session(Box<Session>),
    /// It is being answered right now.
    InFlight,
    /// It asked for something else.
    Mismatch,
}

/// The answer to a claim.
#[derive(Debug)]
pub enum Claimed<R> {
    /// The key was free: issue, then complete.
    Run(R),
    /// It was not.
    Earlier(Earlier),
}

/// The ledger could not be asked, or did not answer.
#[derive(Debug, thiserror::Error)]
#[error("the ledger of issued sessions failed")]
pub struct LedgerError(#[source] pub Box<dyn Error + Send + Sync>);
