//! The ledger on a store of idempotency records.
//!
//! A record holds the session as JSON, never its token. It is kept for 24 hours.

use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Response, Terms, Ticket};
use admit::{IdempotencyStore, TimeSource};

use crate::access::{
    Claimed, Earlier, IdempotencyKey, IssuanceLedger, LedgerError, RunId, Session, SessionRequest,
};

/// The ledger on a store.
#[derive(Clone, Debug)]
pub struct StoreLedger<S> {
    store: S,
    time: TimeSource,
    terms: Terms,
}

/// A record that holds something else than a session.
#[derive(Debug, thiserror::Error)]
#[error("the record does not hold a session")]
struct NoSession(#[source] Option<serde_json::Error>);

impl<S: IdempotencyStore> StoreLedger<S> {
    /// A ledger on the usual terms: an issuance that does not end within a minute may be run again, since nothing of it
    /// was told to anybody.
    pub fn new(store: S, time: TimeSource) -> Self {
        Self { store, time, terms: Terms::default() }
    }
}

/// The name of a key's record. Keys are an identity's, whatever the project.
pub fn record_key(key: &IdempotencyKey) -> RecordKey {
    RecordKey::new(&key.identity.to_string(), "POST", "/v1/projects/{project_id}/sessions", &key.text)
}

impl RunId for Ticket {}

impl<S: IdempotencyStore> IssuanceLedger for StoreLedger<S> {
    type Run = Ticket;

    async fn look(
        &self,
        key: &IdempotencyKey,
        request: &SessionRequest,
    ) -> Result<Option<Earlier>, LedgerError> {
        let fingerprint = fingerprint(request)?;
        let looked = self.store.look(&record_key(key), &fingerprint, &self.terms, self.time.now()).await;
        match looked.map_err(failed)? {
            None | Some(Claim::Run(_)) => Ok(None),
            Some(claim) => earlier(claim).map(Some),
        }
    }

    async fn claim(
        &self,
        key: &IdempotencyKey,
        request: &SessionRequest,
    ) -> Result<Claimed<Ticket>, LedgerError> {
        let fingerprint = fingerprint(request)?;
        let claimed = self.store.claim(&record_key(key), &fingerprint, &self.terms, self.time.now()).await;
        match claimed.map_err(failed)? {
            Claim::Run(ticket) => Ok(Claimed::Run(ticket)),
            claim => earlier(claim).map(Claimed::Earlier),
        }
    }

    async fn complete(&self, ticket: Ticket, session: &Session) -> Result<(), LedgerError> {
        let body = serde_json::to_vec(session).map_err(failed)?;
        let outcome = Outcome::Response(Response { status: 201, headers: Vec::new(), body });
        self.store.complete(&ticket, &outcome, &self.terms, self.time.now()).await.map_err(failed)
    }
}

fn fingerprint(request: &SessionRequest) -> Result<Fingerprint, LedgerError> {
    serde_json::to_vec(request).map(Fingerprint::of).map_err(failed)
}

fn earlier(claim: Claim) -> Result<Earlier, LedgerError> {
    match claim {
        Claim::Done(Outcome::Response(response)) => {
            let session = serde_json::from_slice(&response.body);
            session
                .map(|session| Earlier::Session(Box::new(session)))
                .map_err(|error| failed(NoSession(Some(error))))
        }
        Claim::Done(Outcome::Tombstone { .. }) => Err(failed(NoSession(None))),
        Claim::Mismatch => Ok(Earlier::Mismatch),
        Claim::InFlight { .. } | Claim::Blocked | Claim::Run(_) => Ok(Earlier::InFlight),
    }
}

fn failed(cause: impl std::error::Error + Send + Sync + 'static) -> LedgerError {
    LedgerError(Box::new(cause))
}
