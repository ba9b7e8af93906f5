//! Takes, looks at and gives back charges.

use admit::{Refusal as Refused, Wait};
use admit_tower::{Rejection, whole_seconds};
use axum::Json;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::problems::Refusal;
use super::reading::whole;
use crate::policy::Mode;

/// The longest call, in bytes: 64 charges of keys of 1,024 characters.
pub(super) const MAX_CALL_BYTES: usize = 512 << 10;

/// All charges were debited.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Taken {
    /// Always true: what does not fit is a 429.
    granted: bool,
    /// False if the store could not answer and the policy lets such requests run: then nothing was debited.
    charged: bool,
    /// The charges, in the order of the call.
    charges: Vec<TakenCharge>,
}

/// A charge that was debited.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TakenCharge {
    /// The budget's name, or the scope.
    scope: String,
    /// Whether it is held to.
    mode: ModeWord,
    /// Tokens left. Null for a charge of nothing, a shadow, or where nothing was charged.
    left: Option<f64>,
    /// Seconds until the bucket is full again, rounded up. Null where `left` is.
    full_after_seconds: Option<u64>,
}

/// What a take would come to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Peeked {
    /// Whether a take of these charges would be granted now.
    fits: bool,
    /// Whether no wait helps, as a cost is above what its budget ever holds.
    never_fits: bool,
    /// Seconds until a take would be granted, rounded up and at least 1. Null if it fits now, or never.
    retry_after_seconds: Option<u64>,
    /// The charges, in the order of the call.
    charges: Vec<PeekedCharge>,
}

/// How a charge stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PeekedCharge {
    /// The budget's name, or the scope.
    scope: String,
    /// Whether it is held to.
    mode: ModeWord,
    /// Tokens in the bucket. Null for a charge of nothing or a shadow, or where no bucket was asked.
    tokens: Option<f64>,
    /// Seconds until this charge fits, rounded up and at least 1. Null if it does now, or never does.
    wait_seconds: Option<u64>,
}

/// Whether a budget's refusals count.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ModeWord {
    /// They do.
    Enforce,
    /// They are only counted.
    Shadow,
}

impl From<Mode> for ModeWord {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Enforce => Self::Enforce,
            Mode::Shadow => Self::Shadow,
        }
    }
}

/// Debits all charges, or none.
pub(super) async fn take(api: Api, request: Request) -> Result<Response, Refusal> {
    let (parts, call) = whole(&api.decider.read_ahead, request, MAX_CALL_BYTES).await?;
    let called = api.called(&call.bytes)?;
    let decided = api.decider.decide(&parts, called.charges()).await;
    let admitted = decided.map_err(|rejected| api.rejected(&parts, *rejected))?;
    let debits = admitted.debits();
    let told = called.told(|i, quota| {
        let left = debits.get(i)?.1?;
        Some((left, whole_seconds(quota.time_until_full(left))))
    });
    let charges = told.into_iter().map(|(quota, mode, told)| TakenCharge {
        scope: quota.name().to_owned(),
        mode: mode.into(),
        left: told.map(|(left, _)| left),
        full_after_seconds: told.map(|(_, seconds)| seconds),
    });
    let charged = !debits.is_empty() || !called.is_held();
    let taken = Taken { granted: true, charged, charges: charges.collect() };
    let mut response = Json(taken).into_response();
    admitted.mark(response.headers_mut());
    Ok(response)
}

/// Tells what a take would come to. Writes nothing.
pub(super) async fn peek(api: Api, request: Request) -> Result<Json<Peeked>, Refusal> {
    let (parts, call) = whole(&api.decider.read_ahead, request, MAX_CALL_BYTES).await?;
    let called = api.called(&call.bytes)?;
    let (refusal, debits) = match api.decider.limiter.peek(&parts, called.charges().quotas).await {
        Ok(admitted) => (None, admitted.debits().to_vec()),
        Err(rejected) => match &rejected.why {
            Rejection::Refused(refused) => (Some(refused.refusal.clone()), Vec::new()),
            _ => return Err(api.rejected(&parts, *rejected)),
        },
    };
    let told = called.told(|i, _| match &refusal {
        Some(refusal) => refusal.standings.get(i).map(|standing| (standing.level, standing.wait)),
        None => debits.get(i).map(|(_, tokens)| (*tokens, None)),
    });
    let charges = told.into_iter().map(|(quota, mode, told)| {
        let (tokens, wait) = told.unwrap_or_default();
        PeekedCharge {
            scope: quota.name().to_owned(),
            mode: mode.into(),
            tokens,
            wait_seconds: wait.and_then(seconds_to_wait),
        }
    });
    let retry_after_seconds = refusal.as_ref().and_then(Refused::retry_after_seconds);
    Ok(Json(Peeked {
        fits: refusal.is_none(),
        never_fits: refusal.is_some() && retry_after_seconds.is_none(),
        retry_after_seconds,
        charges: charges.collect(),
    }))
}

fn seconds_to_wait(wait: Wait) -> Option<u64> {
    match wait {
        Wait::After(wait) => Some(whole_seconds(wait).max(1)),
        Wait::Never => None,
    }
}

/// Gives back what a granted take debited, all or nothing.
pub(super) async fn refund(api: Api, request: Request) -> Result<StatusCode, Refusal> {
    let (parts, call) = whole(&api.decider.read_ahead, request, MAX_CALL_BYTES).await?;
    let charges = api.called(&call.bytes)?.charges();
    let all = [charges.quotas, charges.shadows].concat();
    let given = api.decider.limiter.refund(&parts, &all).await;
    given.map_err(|rejected| api.rejected(&parts, *rejected))?;
    Ok(StatusCode::NO_CONTENT)
}
