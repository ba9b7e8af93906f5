//! Issues sessions, one per idempotency key.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use admit::{Clock, Timestamp};

use super::{
    Claimed, DomainPolicy, Earlier, IdempotencyKey, IssuanceLedger, IssuanceLimitError, IssuanceLimiter,
    LedgerError, Session, SessionRequest, Signer, Status,
};
use crate::fleet::{DomainId, IdentityId, ProjectId};
use crate::random::{self, NoRandomness};
use crate::rfc3339;

/// What it takes to issue sessions. Clones share it.
#[derive(Clone)]
pub struct Issuer<L, M> {
    limiter: L,
    ledger: M,
    signer: Arc<Signer>,
    clock: Arc<dyn Clock>,
}

impl<L, M> fmt::Debug for Issuer<L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer").field("signer", &self.signer).finish_non_exhaustive()
    }
}

/// A session and its token.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The session.
    pub session: Session,
    /// Its token.
    pub token: String,
    /// Whether it was issued before.
    pub replayed: bool,
}

/// Why no session was issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The domain's budget does not cover it, or could not be evaluated.
    #[error(transparent)]
    Limit(#[from] IssuanceLimitError),
    /// A request with the same key is being answered.
    #[error("a request with the same idempotency_key is being answered; try again")]
    InFlight,
    /// The key was used for another request.
    #[error("the idempotency_key was used for another request")]
    Mismatch,
    /// Earlier issuances are not known, or this one could not be recorded.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// There is no session id without it.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    /// The token could not be written.
    #[error("the token could not be written")]
    Token(#[source] serde_json::Error),
}

/// Who asks, and where the resource is.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// Who asks.
    pub identity: IdentityId,
    /// The project of the resource.
    pub project: ProjectId,
    /// The domain of the project.
    pub domain: DomainId,
    /// What the domain allows.
    pub policy: DomainPolicy,
}

impl<L: IssuanceLimiter, M: IssuanceLedger> Issuer<L, M> {
    /// An issuer on its ports.
    pub fn new(limiter: L, ledger: M, signer: Signer, clock: Arc<dyn Clock>) -> Self {
        Self { limiter, ledger, signer: Arc::new(signer), clock }
    }

    /// Issues a session, or tells the one that an earlier request with the same key led to.
    ///
    /// To be run to its end even if the client hangs up: between the claim of the key and its completion nobody else is
    /// answered.
    ///
    /// # Errors
    /// [`IssueError`].
    pub async fn issue(self, asker: Asker, request: SessionRequest) -> Result<Issued, IssueError> {
        let key =
            request.idempotency_key.clone().map(|text| IdempotencyKey { identity: asker.identity, text });
        if let Some(key) = &key
            && let Some(earlier) = self.ledger.look(key, &request).await?
        {
            return self.replay(earlier);
        }
        self.limiter.admit(asker.domain).await?;
        let run = match &key {
            None => None,
            Some(key) => match self.ledger.claim(key, &request).await {
                Ok(Claimed::Run(run)) => Some(run),
                lost => {
                    self.limiter.give_back(asker.domain).await; // Nothing is issued for it.
                    return match lost? {
                        Claimed::Earlier(earlier) => self.replay(earlier),
                        Claimed::Run(_) => Err(IssueError::InFlight), // Was matched above.
                    };
                }
            },
        };
        let session = self.session(asker, request)?;
        if let Some(run) = run {
            self.ledger.complete(run, &session).await?;
        }
        self.told(session, false)
    }

    fn replay(&self, earlier: Earlier) -> Result<Issued, IssueError> {
        match earlier {
            Earlier::Session(session) => self.told(*session, true),
            Earlier::InFlight => Err(IssueError::InFlight),
            Earlier::Mismatch => Err(IssueError::Mismatch),
        }
    }

    fn told(&self, session: Session, replayed: bool) -> Result<Issued, IssueError> {
        let token = self.signer.token(&session).map_err(IssueError::Token)?;
        Ok(Issued { session, token, replayed })
    }

    fn session(&self, asker: Asker, request: SessionRequest) -> Result<Session, IssueError> {
        let longest = asker.policy.max_session_ttl;
        let ttl = request.requested_ttl.map_or(longest, |asked| asked.min(longest));
        let now = self.clock.now();
        // Whole seconds, as the token's numeric dates are.
        let issued_at =
            now.saturating_sub(Duration::from_micros(now.unix_micros().unsigned_abs() % 1_000_000));
        let text = |instant: Timestamp| rfc3339::format(instant);
        Ok(Session {
            id: random::uuid()?,
            project_id: asker.project.uuid(),
            domain_id: asker.domain.uuid(),
            resource_id: request.resource.uuid(),
            identity_id: asker.identity.uuid(),
            kind: request.target.kind(),
            status: Status::Active,
            issued_at: text(issued_at),
            expires_at: text(issued_at.saturating_add(ttl)),
            last_active_at: text(issued_at),
            target: request.target,
        })
    }
}
