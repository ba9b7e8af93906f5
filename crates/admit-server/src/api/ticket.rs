//! Tickets as callers carry them.

use std::fmt;
use std::time::Duration;

use admit::Timestamp;
use admit::idempotency::{Fence, OnLapse, RecordKey, Terms, Ticket};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::de::{Deserialize, Deserializer, Error};

/// A ticket and the terms of its claim, in one opaque text.
///
/// The record's key in it is the SHA-256 of what was claimed and its fence a number of the store's, so that a text that was
/// made up is of a record that there is not, and one that is old has no say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TicketText {
    pub(super) ticket: Ticket,
    pub(super) terms: Terms,
}

/// The form below. Another form has another number, so that replicas of two versions may stand side by side.
const VERSION: u8 = 1;
const BYTES: usize = 1 + 32 + 8 + 8 + 8 + 8 + 1;

impl TicketText {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let (version, rest) = bytes.split_first()?;
        let (key, rest) = rest.split_first_chunk::<32>()?;
        let (fence, rest) = rest.split_first_chunk::<8>()?;
        let (until, rest) = rest.split_first_chunk::<8>()?;
        let (lease, rest) = rest.split_first_chunk::<8>()?;
        let (ttl, rest) = rest.split_first_chunk::<8>()?;
        let on_lapse = match rest {
            [0] => OnLapse::RunAgain,
            [1] => OnLapse::StayBlocked,
            _ => return None,
        };
        let ticket = Ticket {
            key: RecordKey::from_bytes(*key),
            fence: Fence::new(i64::from_be_bytes(*fence)),
            lease_until: Timestamp::from_unix_micros(i64::from_be_bytes(*until)).ok()?,
        };
        let micros = |bytes: &[u8; 8]| Duration::from_micros(u64::from_be_bytes(*bytes));
        let terms = Terms { lease: micros(lease), ttl: micros(ttl), on_lapse };
        (*version == VERSION).then_some(Self { ticket, terms })
    }
}

impl fmt::Display for TicketText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ticket, terms } = self;
        let micros = |duration: Duration| (duration.as_micros() as u64).to_be_bytes(); // Of at most 30 days.
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.push(VERSION);
        bytes.extend(ticket.key.as_bytes());
        bytes.extend(ticket.fence.number().to_be_bytes());
        bytes.extend(ticket.lease_until.unix_micros().to_be_bytes());
        bytes.extend(micros(terms.lease));
        bytes.extend(micros(terms.ttl));
        bytes.push(match terms.on_lapse {
            OnLapse::RunAgain => 0,
            OnLapse::StayBlocked => 1,
        });
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl<'de> Deserialize<'de> for TicketText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(&text).ok();
        let ticket = bytes.and_then(|bytes| Self::from_bytes(&bytes));
        ticket.ok_or_else(|| D::Error::custom("this is no ticket; send one as a claim or a renewal gave it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_comes_back_as_it_went_and_nothing_else_does() {
        let ticket = Ticket {
            key: RecordKey::new("t", "", "op", "k"),
            fence: Fence::new(7),
            lease_until: Timestamp::from_unix_micros(1_700_000_000_000_001).unwrap(),
        };
        let sent = TicketText { ticket, terms: Terms { on_lapse: OnLapse::StayBlocked, ..Terms::default() } };
        let text = sent.to_string();
        let read = |text: &str| serde_json::from_value::<TicketText>(text.into());
        assert_eq!(read(&text).unwrap(), sent);
        for wrong in ["", "AAAA", &text[1..], &format!("B{}", &text[1..]), &format!("{text}A"), "ö"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
