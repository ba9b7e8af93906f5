//! `POST /json`: the same as over gRPC, in protobuf's JSON form.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::{Duration as Length, UInt64Value};
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use admit_tower::{Problem, Rejection, strict_json};

use super::decide::Undecided;
use super::{MAX_MESSAGE_BYTES, RateLimits};
use crate::api::{Refusal, present, read, typed};

/// Names are taken in both forms of protobuf's JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestForm {
    domain: String,
    #[serde(deserialize_with = "strict_json::objects")]
    descriptors: Vec<DescriptorForm>,
    #[serde(default, alias = "hitsAddend")]
    hits_addend: Number<{ u32::MAX as u64 }>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescriptorForm {
    #[serde(default, deserialize_with = "strict_json::objects")]
    entries: Vec<EntryForm>,
    #[serde(default, alias = "hitsAddend", deserialize_with = "present")]
    hits_addend: Option<Number<MAX_HITS>>,
    /// The policy sizes budgets, so it is passed over, as it is over gRPC.
    #[serde(default, rename = "limit")]
    _limit: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryForm {
    key: String,
    #[serde(default)]
    value: String,
}

/// The most hits of a descriptor: up to here every whole number is a JSON number of its own.
pub(super) const MAX_HITS: u64 = (1 << 53) - 1;

/// A whole number up to `MAX`, or the same as a text, as protobuf's JSON has those of 64 bits.
#[derive(Clone, Copy, Debug, Default)]
struct Number<const MAX: u64>(u64);

impl<'de, const MAX: u64> Deserialize<'de> for Number<MAX> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match Value::deserialize(deserializer)? {
            Value::Number(number) => number.as_u64().or_else(|| {
                let number = number.as_f64()?; // JSON has one kind of number: 2.0 is 2.
                (number.fract() == 0.0 && (0.0..=MAX as f64).contains(&number)).then_some(number as u64)
            }),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        let number = number.filter(|number| *number <= MAX);
        number
            .map(Self)
            .ok_or_else(|| serde::de::Error::custom(format_args!("this is no whole number from 0 to {MAX}")))
    }
}

impl From<RequestForm> for RateLimitRequest {
    fn from(form: RequestForm) -> Self {
        let descriptors = form.descriptors.into_iter().map(|descriptor| {
            let entries = descriptor.entries.into_iter();
            RateLimitDescriptor {
                entries: entries.map(|EntryForm { key, value }| Entry { key, value }).collect(),
                hits_addend: descriptor.hits_addend.map(|Number(value)| UInt64Value { value }),
                ..RateLimitDescriptor::default()
            }
        });
        Self {
            domain: form.domain,
            descriptors: descriptors.collect(),
            hits_addend: u32::try_from(form.hits_addend.0).unwrap_or(u32::MAX),
        }
    }
}

pub(super) async fn answer(State(limits): State<RateLimits>, request: Request) -> Result<Response, Refusal> {
    let (_parts, call) = read(&limits.decider.read_ahead, request, MAX_MESSAGE_BYTES).await?;
    let form: RequestForm = typed(&call, "")?;
    let decided = limits.decide(&form.into()).await;
    let response = decided.map_err(|undecided| match &undecided {
        Undecided::Invalid(_) => {
            let problem = Problem::new(StatusCode::BAD_REQUEST).detail(undecided.to_string());
            Refusal::Problem(Box::new(problem.with("error", "bad_request")))
        }
        Undecided::Unavailable => Refusal::Rejection(Rejection::Unavailable),
        Undecided::Internal => Refusal::Rejection(Rejection::Internal),
    })?;
    let status = match response.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::OK,
    };
    let mut answer = (status, axum::Json(as_json(&response))).into_response();
    let fields = response.response_headers_to_add.iter().filter(|header| header.key != "content-type");
    for header in fields {
        if let (Ok(name), Ok(value)) =
            (HeaderName::try_from(&header.key), HeaderValue::try_from(&header.value))
        {
            answer.headers_mut().append(name, value);
        }
    }
    Ok(answer)
}

/// As protobuf's JSON has it: what has its default is left out.
fn as_json(response: &RateLimitResponse) -> Value {
    let mut members = Map::new();
    members.insert("overallCode".into(), response.overall_code().as_str_name().into());
    members.insert("statuses".into(), response.statuses.iter().map(status).collect());
    if !response.response_headers_to_add.is_empty() {
        let headers = response.response_headers_to_add.iter();
        let headers = headers.map(|header| json!({"key": header.key, "value": header.value}));
        members.insert("responseHeadersToAdd".into(), headers.collect());
    }
    if !response.raw_body.is_empty() {
        members.insert("rawBody".into(), BASE64_STANDARD.encode(&response.raw_body).into());
    }
    members.into()
}

fn status(status: &DescriptorStatus) -> Value {
    let mut members = Map::new();
    members.insert("code".into(), status.code().as_str_name().into());
    if let Some(limit) = &status.current_limit {
        let (name, unit) = (&limit.name, limit.unit().as_str_name());
        let limit = json!({"name": name, "requestsPerUnit": limit.requests_per_unit, "unit": unit});
        members.insert("currentLimit".into(), limit);
    }
    if status.limit_remaining > 0 {
        members.insert("limitRemaining".into(), status.limit_remaining.into());
    }
    if let Some(Length { seconds, nanos }) = &status.duration_until_reset {
        let text = match nanos {
            0 => format!("{seconds}s"),
            nanos => format!("{seconds}.{:06}s", nanos / 1_000), // Whole microseconds.
        };
        members.insert("durationUntilReset".into(), text.into());
    }
    members.into()
}
