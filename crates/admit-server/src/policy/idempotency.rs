//! How the requests of a route are kept from running twice.

use std::time::Duration;

use admit::idempotency::{OnLapse, Terms};
use admit_tower::{FingerprintOf, Idempotent, IfMissing, JsonPointer, KeyFrom};
use jiff::{Span, SpanRelativeTo};

use super::budget::key_source;
use super::problems::Problems;
use super::section::{Section, Value, Wrong, one_of, plain, text};
use super::sources::KeySource;

/// How the requests of a route are kept from running twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyRule {
    /// Whose keys they are: one caller's key never meets another's.
    pub by: KeySource,
    /// Where the key is.
    pub key: KeyFrom,
    /// What happens to a request without a key.
    pub if_missing: IfMissing,
    /// What tells one payload from another.
    pub fingerprint: FingerprintOf,
    /// For how long.
    pub terms: Terms,
    /// How long a request waits for another with its key, before it is told that the key is in flight.
    pub wait: Duration,
}

impl IdempotencyRule {
    pub(super) fn read<'a>(value: Value<'a>, problems: &'a Problems) -> Result<Self, Wrong> {
        let mut section = Section::of("idempotency", value, problems)?;
        let by = section.required("by", "\"api_key\"", |value| key_source(value, problems));
        let key = section.required("key", "\"header\"", key).unwrap_or(KeyFrom::Header); // Its problem is noted.
        let missing = [
            ("reject", IfMissing::Reject),
            ("run", IfMissing::RunUnkeyed),
            ("content", IfMissing::ContentKey),
        ];
        let if_missing = section.member("if_missing", one_of(&missing));
        let default = Terms::default();
        let lapse = [("run_again", OnLapse::RunAgain), ("stay_blocked", OnLapse::StayBlocked)];
        let terms = Terms {
            ttl: section.member("ttl", duration).unwrap_or(default.ttl),
            lease: section.member("lease", duration).unwrap_or(default.lease),
            on_lapse: section.member("on_lapse", one_of(&lapse)).unwrap_or(default.on_lapse),
        };
        let wait = section.member("wait", duration).unwrap_or(Idempotent::DEFAULT_WAIT);
        section.finish();
        let fingerprint = match key {
            KeyFrom::Header => FingerprintOf::RawBody,
            KeyFrom::Body { .. } => FingerprintOf::CanonicalJson,
        };
        let by = by.unwrap_or(KeySource { parts: Vec::new() }); // Its problem is noted.
        Ok(Self { by, key, if_missing: if_missing.unwrap_or(IfMissing::Reject), fingerprint, terms, wait })
    }
}

fn key(value: Value<'_>) -> Result<KeyFrom, Wrong> {
    const WANTED: &str = "\"header\" for the Idempotency-Key header, or \"json:/POINTER\"";
    match text(value)? {
        "header" => Ok(KeyFrom::Header),
        text => match text.strip_prefix("json:").map(str::parse::<JsonPointer>) {
            Some(Ok(pointer)) => Ok(KeyFrom::Body { pointer }),
            Some(Err(error)) => Err(Wrong::new(value, error.to_string(), format!("write {WANTED}"))),
            None => {
                Err(Wrong::new(value, format!("{text:?} is no place of a key"), format!("write {WANTED}")))
            }
        },
    }
}

/// A length of time above zero, as in `24h` or `1m 30s`.
pub(super) fn duration(value: Value<'_>) -> Result<Duration, Wrong> {
    const WANTED: &str = "a length of time as in \"24h\", \"90s\" or \"30 days\"";
    let length: Span = plain(WANTED)(value)?;
    let whole = |length: Span| length.to_duration(SpanRelativeTo::days_are_24_hours()).ok();
    let Some(length) = whole(length) else {
        return Err(Wrong::new(value, "months and years differ in length", format!("write {WANTED}")));
    };
    let length = Duration::try_from(length).ok().filter(|length| !length.is_zero());
    length.ok_or_else(|| Wrong::new(value, "this is not above zero", format!("write {WANTED}")))
}
