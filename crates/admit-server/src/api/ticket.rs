//! Tickets as callers carry them.

use std::fmt;
use std::time::Duration;

use admit::Timestamp;
use admit::idempotency::{Fence, OnLapse, RecordKey, Terms, Ticket};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use data_encoding::HEXLOWER;
use serde::de::{Deserialize, Deserializer, Error};

use super::idempotency::{MAX_LEASE_SECONDS, MAX_TTL_SECONDS};
use super::problems::Refusal;

/// A ticket and the terms of its claim, in one opaque text. One that is old has no say, by its fence.
///
/// It is no secret, and can be made up: what is claimed is known to who claims it, and fences are numbers of one counter, of
/// which each ticket shows one. So whoever may ask for decisions may end a run of another that may: they trust each other.
/// What they cannot name is a record of the gateway, as what stands in a ticket is only a part of what the record's key is
/// made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TicketText {
    /// What was claimed.
    pub(super) claimed: ClaimedKey,
    pub(super) fence: Fence,
    pub(super) lease_until: Timestamp,
    pub(super) terms: Terms,
}

/// What a caller claims: the SHA-256 of the tenant, the operation and the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimedKey([u8; 32]);

impl ClaimedKey {
    pub(super) fn new(tenant: &str, operation: &str, key: &str) -> Self {
        Self(*RecordKey::new(tenant, "", operation, key).as_bytes())
    }

    /// Its record, which is never that of a route: those have a method.
    pub(super) fn record(self) -> RecordKey {
        RecordKey::new("", "", "/v1/idempotency", &HEXLOWER.encode(&self.0))
    }
}

/// The form below. Another form has another number, so that replicas of two versions may stand side by side.
const VERSION: u8 = 2;
const BYTES: usize = 1 + 32 + 8 + 8 + 8 + 8 + 1;

impl TicketText {
    /// The text of a ticket for what was claimed.
    pub(super) fn new(claimed: ClaimedKey, ticket: &Ticket, terms: Terms) -> Self {
        Self { claimed, fence: ticket.fence, lease_until: ticket.lease_until, terms }
    }

    /// The ticket that the store takes.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket { key: self.claimed.record(), fence: self.fence, lease_until: self.lease_until }
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let (version, rest) = bytes.split_first()?;
        let (claimed, rest) = rest.split_first_chunk::<32>()?;
        let (fence, rest) = rest.split_first_chunk::<8>()?;
        let (until, rest) = rest.split_first_chunk::<8>()?;
        let (lease, rest) = rest.split_first_chunk::<8>()?;
        let (ttl, rest) = rest.split_first_chunk::<8>()?;
        let on_lapse = match rest {
            [0] => OnLapse::RunAgain,
            [1] => OnLapse::StayBlocked,
            _ => return None,
        };
        let fence = Fence::new(i64::from_be_bytes(*fence));
        let lease_until = Timestamp::from_unix_micros(i64::from_be_bytes(*until)).ok()?;
        let micros = |bytes: &[u8; 8]| Duration::from_micros(u64::from_be_bytes(*bytes));
        let terms = Terms { lease: micros(lease), ttl: micros(ttl), on_lapse };
        // No claim gives more, and no store has to count with what nobody gave.
        let fits = terms.lease.as_secs() <= MAX_LEASE_SECONDS.into()
            && terms.ttl.as_secs() <= MAX_TTL_SECONDS.into();
        (*version == VERSION && fits).then_some(Self {
            claimed: ClaimedKey(*claimed),
            fence,
            lease_until,
            terms,
        })
    }
}

impl fmt::Display for TicketText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { claimed: ClaimedKey(claimed), fence, lease_until, terms } = self;
        let micros = |duration: Duration| (duration.as_micros() as u64).to_be_bytes(); // Of at most 30 days.
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.push(VERSION);
        bytes.extend(claimed);
        bytes.extend(fence.number().to_be_bytes());
        bytes.extend(lease_until.unix_micros().to_be_bytes());
        bytes.extend(micros(terms.lease));
        bytes.extend(micros(terms.ttl));
        bytes.push(match terms.on_lapse {
            OnLapse::RunAgain => 0,
            OnLapse::StayBlocked => 1,
        });
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }
}

/// A text of a ticket's length, as a caller sent it.
#[derive(Clone, Debug)]
pub(crate) struct SentTicket(Option<TicketText>);

impl SentTicket {
    /// The ticket.
    ///
    /// # Errors
    /// [`Refusal::TicketLost`] if no claim gave this text: it has no say, as one that is too old.
    pub(super) fn known(self) -> Result<TicketText, Refusal> {
        self.0.ok_or(Refusal::TicketLost)
    }
}

impl<'de> Deserialize<'de> for SentTicket {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(String::deserialize(deserializer)?).ok();
        match bytes.filter(|bytes| bytes.len() == BYTES) {
            Some(bytes) => Ok(Self(TicketText::from_bytes(&bytes))),
            None => Err(D::Error::custom("this is no ticket; send one as a claim or a renewal gave it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_comes_back_as_it_went_and_nothing_else_does() {
        let sent = TicketText {
            claimed: ClaimedKey::new("t", "op", "k"),
            fence: Fence::new(7),
            lease_until: Timestamp::from_unix_micros(1_700_000_000_000_001).unwrap(),
            terms: Terms { on_lapse: OnLapse::StayBlocked, ..Terms::default() },
        };
        let text = sent.to_string();
        let read = |text: &str| serde_json::from_value::<SentTicket>(text.into());
        assert_eq!(read(&text).unwrap().known().unwrap(), sent);
        for wrong in ["", "AAAA", &text[1..], &format!("{text}A"), "ö"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        for lost in [&format!("B{}", &text[1..]), &"_".repeat(88)] {
            assert!(read(lost).unwrap().known().is_err(), "{lost}");
        }
    }
}
