//! One run per key: the state machine of idempotency records.
//!
//! A request *claims* its key and gets a [`Ticket`], runs, and *completes* the record; later claims replay it. While the
//! run holds its lease, claims find it in flight. A ticket whose lease has lapsed can no longer complete or release:
//! every claim of every key gets a [`Fence`] of its own, and the record knows the last.
//!
//! ```
//! use admit::Timestamp;
//! use admit::idempotency::{Claim, Fence, Fingerprint, Outcome, Record, RecordKey, Response, Terms};
//!
//! let key = RecordKey::new("tenant", "POST", "/orders", "order-7");
//! let (payload, terms, now) = (Fingerprint::of("{}"), Terms::default(), Timestamp::MIN);
//!
//! let (claim, record) = Record::claim(None, key, payload, Fence::new(1), &terms, now);
//! let (Claim::Run(ticket), Some(record)) = (claim, record) else { unreachable!("the key was free") };
//!
//! let outcome = Outcome::Response(Response { status: 201, headers: vec![], body: b"created".to_vec() });
//! let record = record.complete(&ticket, outcome.clone(), &terms, now).expect("the lease holds");
//! assert_eq!(record.look(payload, &terms, now), Some(Claim::Done(outcome)));
//! ```

use std::fmt;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::Timestamp;

/// The name of a record: SHA-256 over the length-prefixed tenant, method, route and client's key, so that one tenant's
/// key never meets another's, and no client's text reaches a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey([u8; 32]);

/// What the request asked for, as a SHA-256: the same key with another fingerprint is a mistake of the client.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

/// Tells one claim from all others of its store, whatever their key. It grows with every claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(i64);

/// The right to complete or release a record, while its lease lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Which record.
    pub key: RecordKey,
    /// Which claim of it.
    pub fence: Fence,
    /// When the right ends, unless it is renewed.
    pub lease_until: Timestamp,
}

/// On what terms a route's requests run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a run may go without renewing. Default 60 s.
    pub lease: Duration,
    /// How long a completed record is replayed. Default 24 h.
    pub ttl: Duration,
    /// What becomes of a key whose run has let its lease lapse. Default: it runs again.
    pub on_lapse: OnLapse,
}

impl Default for Terms {
    fn default() -> Self {
        Self { lease: Duration::from_secs(60), ttl: Duration::from_secs(86_400), on_lapse: OnLapse::RunAgain }
    }
}

/// What becomes of a key whose run has let its lease lapse, most likely because its process died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLapse {
    /// The next claim runs. For work that may be started twice, or that commits together with its record.
    RunAgain,
    /// The key stays blocked until the time to live, counted from the claim, is over. For work that must not be started
    /// twice.
    StayBlocked,
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The key was free: run, then complete or release.
    Run(Ticket),
    /// A run was completed: replay what it came to.
    Done(Outcome),
    /// A run holds the key for at most this long, unless it renews.
    InFlight {
        /// What is left of its lease.
        lease_left: Duration,
    },
    /// A run let its lease lapse, and the route's terms are [`OnLapse::StayBlocked`].
    Blocked,
    /// The key was used with another payload.
    Mismatch,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A response to replay byte for byte.
    Response(Response),
    /// The run was completed, but its response is not kept (too large, too slow, or with trailers): a retry is told so, and
    /// does not run.
    Tombstone {
        /// The status the first caller got.
        status: u16,
    },
}

/// A response to replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// Names and values in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body.
    pub body: Vec<u8>,
}

/// What a store keeps of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What was asked for.
    pub fingerprint: Fingerprint,
    /// The last claim.
    pub fence: Fence,
    /// How far its run is.
    pub state: State,
    /// When the key is free again. A run that holds its lease outlasts it.
    pub expires_at: Timestamp,
}

/// How far a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs, or died.
    Running {
        /// Until when it holds the key.
        lease_until: Timestamp,
    },
    /// It was completed.
    Completed(Outcome),
}

/// The ticket has no more say over the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ticket no longer holds its key")]
pub struct TicketLost;

impl RecordKey {
    /// The record of a client's key within its tenant, method and route.
    pub fn new(tenant: &str, method: &str, route: &str, client_key: &str) -> Self {
        let mut digest = Sha256::new();
        for part in [tenant, method, route, client_key] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        Self(digest.finalize().into())
    }

    /// A name that was made before, as a ticket carries it.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Fingerprint {
    /// The SHA-256 of what was asked for.
    pub fn of(payload: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(payload).into())
    }

    /// A fingerprint that was stored.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Fence {
    /// The fence with this number.
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn number(self) -> i64 {
        self.0
    }
}

impl Record {
    /// Claims a key at `now`, given its record if there is one. If the claim is [`Claim::Run`], also the record to
    /// write. `fence` must be larger than that of every earlier claim of the store.
    pub fn claim(
        existing: Option<&Self>,
        key: RecordKey,
        fingerprint: Fingerprint,
        fence: Fence,
        terms: &Terms,
        now: Timestamp,
    ) -> (Claim, Option<Self>) {
        if let Some(taken) = existing.and_then(|record| record.look(fingerprint, terms, now)) {
            return (taken, None);
        }
        let lease_until = now.saturating_add(terms.lease);
        let record = Self {
            fingerprint,
            fence,
            state: State::Running { lease_until },
            expires_at: now.saturating_add(terms.ttl),
        };
        (Claim::Run(Ticket { key, fence, lease_until }), Some(record))
    }

    /// What a claim at `now` would answer, unless the key is free.
    pub fn look(&self, fingerprint: Fingerprint, terms: &Terms, now: Timestamp) -> Option<Claim> {
        if self.is_expired(now) {
            return None;
        }
        if self.fingerprint != fingerprint {
            return Some(Claim::Mismatch);
        }
        match &self.state {
            State::Completed(outcome) => Some(Claim::Done(outcome.clone())),
            State::Running { lease_until } if now < *lease_until => {
                Some(Claim::InFlight { lease_left: lease_until.since(now) })
            }
            State::Running { .. } => match terms.on_lapse {
                OnLapse::RunAgain => None,
                OnLapse::StayBlocked => Some(Claim::Blocked),
            },
        }
    }

    /// Whether the record may be deleted: its time is over, and no run holds it.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        let held = matches!(self.state, State::Running { lease_until } if now < lease_until);
        !held && self.expires_at <= now
    }

    /// Whether the ticket still has a say at `now`.
    fn admits(&self, ticket: &Ticket, now: Timestamp) -> Result<(), TicketLost> {
        match self.state {
            State::Running { lease_until } if self.fence == ticket.fence && now < lease_until => Ok(()),
            _ => Err(TicketLost),
        }
    }

    /// The record with its lease extended from `now`, and the new ticket. A lease never gets shorter.
    ///
    /// # Errors
    /// [`TicketLost`] if the lease has lapsed, or the record was completed.
    pub fn renew(self, ticket: &Ticket, terms: &Terms, now: Timestamp) -> Result<(Self, Ticket), TicketLost> {
        self.admits(ticket, now)?;
        let lease_until = now.saturating_add(terms.lease).max(ticket.lease_until);
        let renewed = Self { state: State::Running { lease_until }, ..self };
        Ok((renewed, Ticket { lease_until, ..ticket.clone() }))
    }

    /// The record completed at `now`.
    ///
    /// # Errors
    /// As [`Record::renew`].
    pub fn complete(
        self,
        ticket: &Ticket,
        outcome: Outcome,
        terms: &Terms,
        now: Timestamp,
    ) -> Result<Self, TicketLost> {
        self.admits(ticket, now)?;
        Ok(Self { state: State::Completed(outcome), expires_at: now.saturating_add(terms.ttl), ..self })
    }

    /// Whether the ticket may delete the record at `now`.
    ///
    /// # Errors
    /// As [`Record::renew`].
    pub fn release(&self, ticket: &Ticket, now: Timestamp) -> Result<(), TicketLost> {
        self.admits(ticket, now)
    }
}

fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}
