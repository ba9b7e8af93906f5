//! Claims, renews, completes and releases idempotency keys for services in other languages.

use std::collections::BTreeMap;
use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, OnLapse, Outcome, Response as Stored, Terms};
use admit::{Causes, IdempotencyError, IdempotencyStore, Now, Unavailable};
use admit_tower::{CorrelationId, Event, Keyed, Observer, Rejection, record_of};
use axum::Json;
use axum::extract::Request;
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use utoipa::ToSchema;

use super::Api;
use super::charges::MAX_NAME_CHARS;
use super::problems::{Refusal, Unfit};
use super::reading::{read, step, typed};
use super::text::{Text, Whole, present};
use super::ticket::{ClaimedKey, SentTicket, TicketText};

/// The longest call but for a completion, in bytes.
const MAX_CALL_BYTES: usize = 64 << 10;
/// The longest body that is recorded, in bytes, as in every front.
const MAX_RECORDED_BYTES: usize = 1 << 20;
/// The longest completion, in bytes: such a body with an escape for each of its bytes (`\u0000`), its headers, and more.
const MAX_COMPLETION_BYTES: usize = 8 << 20;
/// The most headers of a completion.
pub(super) const MAX_HEADERS: usize = 64;
/// The longest fingerprint, in characters.
pub(super) const MAX_FINGERPRINT_CHARS: usize = 1_024;
/// The longest lease, in seconds: an hour. A longer run renews it.
pub(super) const MAX_LEASE_SECONDS: u32 = 3_600;
/// The longest time to live, in seconds: 30 days.
pub(super) const MAX_TTL_SECONDS: u32 = 30 * 86_400;
/// Takes a last character with more bits than the body has.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));
/// How long the store may take for one operation before it counts as unavailable.
const STORE_TIME_LIMIT: Duration = Duration::from_secs(5);

/// Which key is claimed, and on what terms.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimForm {
    /// Whose key it is: one tenant's key never meets another's.
    #[schema(value_type = String, min_length = 1, max_length = 255)]
    tenant: Text<MAX_NAME_CHARS>,
    /// What the key is good for, as in `POST /orders`.
    #[schema(value_type = String, min_length = 1, max_length = 255)]
    operation: Text<MAX_NAME_CHARS>,
    /// The client's key.
    #[schema(value_type = String, min_length = 1, max_length = 255)]
    key: Text<MAX_NAME_CHARS>,
    /// What tells one payload from another: a hash of it, say.
    #[schema(value_type = String, min_length = 1, max_length = 1024)]
    fingerprint: Text<MAX_FINGERPRINT_CHARS>,
    /// How long a run may go without renewing. 60 by default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = u32, required = false, minimum = 1, maximum = 3600)]
    lease_seconds: Option<Whole<1, MAX_LEASE_SECONDS>>,
    /// How long a completed record is replayed. 86,400 by default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = u32, required = false, minimum = 1, maximum = 2592000)]
    ttl_seconds: Option<Whole<1, MAX_TTL_SECONDS>>,
    /// What becomes of a key whose run has let its lease lapse. `run_again` by default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = OnLapseDoc, required = false)]
    on_lapse: Option<OnLapseWord>,
}

/// What becomes of a key whose run has let its lease lapse.
#[derive(Debug, ToSchema)]
#[schema(as = OnLapse, rename_all = "snake_case")]
#[allow(dead_code)] // It is there for the document.
pub(crate) enum OnLapseDoc {
    /// The next claim runs.
    RunAgain,
    /// It stays blocked until the time to live is over.
    StayBlocked,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OnLapseWord(OnLapse);

impl<'de> Deserialize<'de> for OnLapseWord {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "run_again" => Ok(Self(OnLapse::RunAgain)),
            "stay_blocked" => Ok(Self(OnLapse::StayBlocked)),
            _ => Err(serde::de::Error::custom("write \"run_again\" or \"stay_blocked\"")),
        }
    }
}

/// The run that is meant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TicketForm {
    /// As a claim or a renewal gave it.
    #[schema(value_type = String, pattern = "^[A-Za-z0-9_-]{88}$")]
    ticket: SentTicket,
}

/// What a run answered.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompleteForm {
    /// As a claim or a renewal gave it.
    #[schema(value_type = String, pattern = "^[A-Za-z0-9_-]{88}$")]
    ticket: SentTicket,
    /// Its HTTP status.
    #[schema(value_type = u16, minimum = 200, maximum = 599)]
    status: Whole<200, 599>,
    /// Its headers. Those are kept that describe the result: Content-Type, Content-Encoding, Content-Language,
    /// Content-Location, Location, ETag, Last-Modified and Link.
    #[serde(default)]
    #[schema(required = false)]
    headers: BTreeMap<String, String>,
    /// Its body, if it is text.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false)]
    body: Option<String>,
    /// Its body in base64; in place of the text.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false)]
    body_base64: Option<String>,
}

/// What became of a claim that was not refused.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum Claimed {
    /// The key was free: run, then complete or release.
    Run {
        /// To renew, complete or release with. Opaque.
        ticket: String,
        /// For how long it holds the key, unless it is renewed.
        lease_seconds: u64,
    },
    /// A run was completed: answer as it did.
    Replay(Replay),
}

/// What an earlier run answered.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Replay {
    /// The HTTP status.
    status: u16,
    /// Headers by their names in small letters; several of one name are joined with commas.
    headers: BTreeMap<String, String>,
    /// The body, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    body: Option<String>,
    /// The body in base64, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    body_base64: Option<String>,
}

/// A lease that was extended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Renewed {
    /// In place of the one before.
    ticket: String,
    /// For how long it holds the key from now.
    lease_seconds: u64,
}

/// What was kept of a response.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Completed {
    /// What a retry gets.
    recorded: Recorded,
}

/// What a retry gets.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Recorded {
    /// The response.
    Response,
    /// Word that it ran before: the body is too long to keep.
    Tombstone,
    /// Another run: after 5xx, 429, 408, 401 and 403 the key is free.
    Nothing,
}

/// Claims a key, or tells what became of the run that has it.
pub(super) async fn claim(api: Api, request: Request) -> Result<Json<Claimed>, Refusal> {
    let (parts, call) = read(&api.decider.read_ahead, request, MAX_CALL_BYTES).await?;
    let form: ClaimForm = typed(&call, "")?;
    let default = Terms::default();
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    let terms = Terms {
        lease: form.lease_seconds.map_or(default.lease, |Whole(lease)| seconds(lease)),
        ttl: form.ttl_seconds.map_or(default.ttl, |Whole(ttl)| seconds(ttl)),
        on_lapse: form.on_lapse.map_or(default.on_lapse, |OnLapseWord(word)| word),
    };
    let claimed = ClaimedKey::new(&form.tenant.0, &form.operation.0, &form.key.0);
    let key = claimed.record();
    let fingerprint = Fingerprint::of(&form.fingerprint.0);
    let store = &api.decider.store;
    let claim = match timeout(STORE_TIME_LIMIT, store.claim(&key, &fingerprint, &terms, Now::Store)).await {
        Ok(Ok(claim)) => claim,
        Ok(Err(cause)) => return Err(api.records_unavailable(&parts, &cause)),
        Err(elapsed) => {
            return Err(api.records_unavailable(&parts, &Unavailable::timed_out("idempotency", elapsed)));
        }
    };
    let (keyed, rejection) = match claim {
        Claim::Run(ticket) => {
            let lease_seconds = terms.lease.as_secs();
            let ticket = TicketText::new(claimed, &ticket, terms).to_string();
            return Ok(Json(Claimed::Run { ticket, lease_seconds }));
        }
        Claim::Done(Outcome::Response(stored)) => {
            api.tell(Keyed::Replayed);
            return Ok(Json(Claimed::Replay(stored.into())));
        }
        Claim::Done(Outcome::Tombstone { status }) => (Keyed::Gone, Rejection::Gone { status }),
        Claim::InFlight { .. } => (Keyed::InFlight, Rejection::InFlight),
        Claim::Blocked => (Keyed::Blocked, Rejection::Blocked),
        Claim::Mismatch => (Keyed::Mismatch, Rejection::Mismatch),
    };
    api.tell(keyed);
    Err(rejection.into())
}

/// Extends the lease of a run.
pub(super) async fn renew(api: Api, request: Request) -> Result<Json<Renewed>, Refusal> {
    let (parts, call) = read(&api.decider.read_ahead, request, MAX_CALL_BYTES).await?;
    let held = typed::<TicketForm>(&call, "")?.ticket.known()?;
    let renewed = api.used(&parts, api.decider.store.renew(&held.ticket(), &held.terms, Now::Store)).await?;
    let lease_seconds = held.terms.lease.as_secs();
    let ticket = TicketText::new(held.claimed, &renewed, held.terms).to_string();
    Ok(Json(Renewed { ticket, lease_seconds }))
}

/// Records what a run answered.
pub(super) async fn complete(api: Api, request: Request) -> Result<Json<Completed>, Refusal> {
    let (parts, call) = read(&api.decider.read_ahead, request, MAX_COMPLETION_BYTES).await?;
    let form: CompleteForm = typed(&call, "")?;
    let (head, body) = response(&form)?;
    let held = form.ticket.known()?;
    let (ticket, terms) = (held.ticket(), &held.terms);
    let store = &api.decider.store;
    let Some(outcome) = record_of(&head, &body, MAX_RECORDED_BYTES) else {
        api.used(&parts, store.release(&ticket, Now::Store)).await?;
        api.tell(Keyed::Released);
        return Ok(Json(Completed { recorded: Recorded::Nothing }));
    };
    api.used(&parts, store.complete(&ticket, &outcome, terms, Now::Store)).await?;
    let (keyed, recorded) = match outcome {
        Outcome::Response(_) => (Keyed::Completed, Recorded::Response),
        Outcome::Tombstone { .. } => (Keyed::Tombstoned, Recorded::Tombstone),
    };
    api.tell(keyed);
    Ok(Json(Completed { recorded }))
}

/// Frees the key, as if it had never been claimed.
pub(super) async fn release(api: Api, request: Request) -> Result<StatusCode, Refusal> {
    let (parts, call) = read(&api.decider.read_ahead, request, MAX_CALL_BYTES).await?;
    let ticket = typed::<TicketForm>(&call, "")?.ticket.known()?.ticket();
    api.used(&parts, api.decider.store.release(&ticket, Now::Store)).await?;
    api.tell(Keyed::Released);
    Ok(StatusCode::NO_CONTENT)
}

impl Api {
    /// Uses a ticket.
    async fn used<T>(
        &self,
        parts: &Parts,
        asked: impl Future<Output = Result<T, IdempotencyError>>,
    ) -> Result<T, Refusal> {
        match timeout(STORE_TIME_LIMIT, asked).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(IdempotencyError::TicketLost)) => Err(Refusal::TicketLost),
            Ok(Err(IdempotencyError::Unavailable(cause))) => Err(self.records_unavailable(parts, &cause)),
            Err(elapsed) => {
                Err(self.records_unavailable(parts, &Unavailable::timed_out("idempotency", elapsed)))
            }
        }
    }

    fn records_unavailable(&self, parts: &Parts, cause: &Unavailable) -> Refusal {
        let id = CorrelationId::of(parts);
        tracing::error!(correlation_id = %id, error = %Causes(cause), "idempotency records unavailable");
        self.tell(Keyed::Unavailable);
        self.unavailable(parts, id)
    }

    fn tell(&self, keyed: Keyed) {
        self.metrics.observe(Event::Idempotency(keyed));
    }
}

/// The response that a completion tells.
fn response(form: &CompleteForm) -> Result<(http::response::Parts, Bytes), Unfit> {
    let status = u16::try_from(form.status.0).ok().and_then(|status| StatusCode::from_u16(status).ok());
    let status = status.ok_or_else(|| Unfit::form("/status", "this is no status"))?;
    if form.headers.len() > MAX_HEADERS {
        return Err(Unfit::form("/headers", format!("there are more than {MAX_HEADERS}")));
    }
    let (mut head, ()) = http::Response::new(()).into_parts();
    head.status = status;
    for (name, value) in &form.headers {
        let at = || format!("/headers{}", step(name));
        let name: HeaderName = name.parse().map_err(|_| Unfit::form(at(), "this cannot name a header"))?;
        let value = HeaderValue::from_str(value).ok().filter(|value| value.to_str().is_ok());
        let value = value.ok_or_else(|| Unfit::form(at(), "a header has visible ASCII characters"))?;
        head.headers.append(name, value);
    }
    let body = match (&form.body, &form.body_base64) {
        (Some(_), Some(_)) => return Err(Unfit::form("/body_base64", "the body is there already, as text")),
        (Some(text), None) => text.clone().into_bytes(),
        (None, Some(encoded)) => {
            let decoded = BASE64.decode(encoded);
            decoded.map_err(|error| Unfit::form("/body_base64", format!("this is not base64: {error}")))?
        }
        (None, None) => Vec::new(),
    };
    if !body.is_empty()
        && matches!(status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED)
    {
        let at = if form.body.is_some() { "/body" } else { "/body_base64" };
        return Err(Unfit::form(at, format!("a response with status {} has no body", status.as_u16())));
    }
    Ok((head, body.into()))
}

impl From<Stored> for Replay {
    fn from(stored: Stored) -> Self {
        let mut headers: BTreeMap<String, String> = BTreeMap::new();
        for (name, value) in stored.headers {
            let value = String::from_utf8_lossy(&value).into_owned();
            headers.entry(name).and_modify(|known| *known = format!("{known}, {value}")).or_insert(value);
        }
        let (body, body_base64) = match String::from_utf8(stored.body) {
            Ok(text) => (Some(text), None),
            Err(error) => (None, Some(BASE64.encode(error.as_bytes()))),
        };
        Self { status: stored.status, headers, body, body_base64 }
    }
}
