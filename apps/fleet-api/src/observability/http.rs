//! `POST /v1/nodes/{id}/metrics`, `/logs` and `/audit`.

use std::sync::Arc;

use admit::Clock;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderName, StatusCode};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::{
    BatchError, BatchKind, BatchLimits, Buffer, BufferError, Encoding, InflateError, IngestLimitError,
    IngestLimiter, IngestRefused, Origin, Rendered, inflate, render,
};
use crate::fleet::Fleet;
use crate::http::authentication::{self, CallingNode};
use crate::http::body::{self, BodyError};
use crate::http::problem::Problem;
use crate::metrics::Metrics;
use crate::rfc3339;
use crate::settings::IngestLimits;

const SENT_AT: HeaderName = HeaderName::from_static("x-plexsphere-sent-at");

/// How many batches are inflated and checked at once; each may hold some tens of megabytes while it is.
const RENDERED_AT_ONCE: usize = 4;

/// What a client waits when the buffer is full: some rounds of the consumer.
const BUFFER_RETRY_AFTER_SECONDS: u64 = 5;

struct Ingest<L> {
    fleet: Arc<Fleet>,
    limiter: L,
    limits: IngestLimits,
    buffer: Buffer,
    clock: Arc<dyn Clock>,
    rendering: Semaphore,
    metrics: Metrics,
}

#[derive(Serialize)]
struct Receipt {
    accepted_at: String,
    records: usize,
}

/// The routes of this context.
pub fn router<L: IngestLimiter>(
    fleet: Arc<Fleet>,
    limiter: L,
    limits: IngestLimits,
    buffer: Buffer,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
) -> Router {
    let rendering = Semaphore::new(RENDERED_AT_ONCE);
    let ingest = Arc::new(Ingest { fleet, limiter, limits, buffer, clock, rendering, metrics });
    let route = |kind: BatchKind| {
        post(
            move |State(ingest): State<Arc<Ingest<L>>>,
                  path: Result<Path<String>, PathRejection>,
                  request: Request| { async move { ingest.accept(kind, path, request).await } },
        )
    };
    Router::new()
        .route("/v1/nodes/{id}/metrics", route(BatchKind::Metrics))
        .route("/v1/nodes/{id}/logs", route(BatchKind::Logs))
        .route("/v1/nodes/{id}/audit", route(BatchKind::Audit))
        .with_state(ingest)
}

impl<L: IngestLimiter> Ingest<L> {
    async fn accept(
        &self,
        kind: BatchKind,
        path: Result<Path<String>, PathRejection>,
        request: Request,
    ) -> Result<Response, Problem> {
        let (head, body) = request.into_parts();
        let id = path.map(|Path(id)| id).unwrap_or_default(); // Not UTF-8: no node's id.
        let node = authentication::node(&self.fleet, &head.headers, &id)?;
        let encoding = encoding(&head.headers)?;
        let sent_at = sent_at(&head.headers)?;
        let wire = body::read(&head.headers, body, self.limits.max_body_bytes).await.map_err(unread)?;
        self.limiter.admit(node.id, node.domain, wire.len() as u64).await?;

        let accepted_at = rfc3339::format(self.clock.now());
        let batch = self.render(kind, &node, encoding, wire, sent_at, accepted_at.clone()).await?;
        let records = batch.records;
        self.buffer.push(batch)?;
        self.metrics.count_ingested(records);
        Ok((StatusCode::ACCEPTED, Json(Receipt { accepted_at, records })).into_response())
    }

    /// Inflates and checks a batch, away from the threads that serve connections.
    async fn render(
        &self,
        kind: BatchKind,
        node: &CallingNode,
        encoding: Encoding,
        wire: Bytes,
        sent_at: String,
        accepted_at: String,
    ) -> Result<Rendered, Problem> {
        let _turn = self.rendering.acquire().await.map_err(|closed| Problem::internal(&closed))?;
        let (node, domain) = (node.id, node.domain);
        let (cap, limits) =
            (self.limits.max_inflated_bytes, BatchLimits { max_records: self.limits.max_records });
        let rendering = tokio::task::spawn_blocking(move || {
            let inflated = inflate(&wire, encoding, cap)?;
            let origin = Origin { node, domain, sent_at: &sent_at, accepted_at: &accepted_at };
            Ok(render(kind, &inflated, origin, limits)?)
        });
        rendering.await.map_err(|panicked| Problem::internal(&panicked))?
    }
}

fn encoding(headers: &HeaderMap) -> Result<Encoding, Problem> {
    let mut values = headers.get_all(CONTENT_ENCODING).iter();
    let encoding = match (values.next(), values.next()) {
        (None, _) => Some(Encoding::Identity),
        (Some(value), None) if value.as_bytes().eq_ignore_ascii_case(b"identity") => Some(Encoding::Identity),
        (Some(value), None) if value.as_bytes().eq_ignore_ascii_case(b"gzip") => Some(Encoding::Gzip),
        _ => None,
    };
    let detail = "Content-Encoding is gzip or identity";
    encoding.ok_or_else(|| {
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "ingest_encoding_unsupported", detail)
    })
}

fn sent_at(headers: &HeaderMap) -> Result<String, Problem> {
    let text = headers.get(SENT_AT).and_then(|value| value.to_str().ok());
    let valid = text.filter(|text| rfc3339::parse(text).is_some());
    let detail = "X-Plexsphere-Sent-At is an RFC 3339 timestamp from 1970 to 9999-12-30";
    valid.map(ToOwned::to_owned).ok_or_else(|| Problem::bad_request("ingest_sent_at_invalid", detail))
}

impl From<IngestLimitError> for Problem {
    fn from(error: IngestLimitError) -> Self {
        let refused = match &error {
            IngestLimitError::Refused(refused) => refused,
            IngestLimitError::Unavailable(_) => return Self::internal(&error),
        };
        let detail = refused.to_string();
        match refused {
            IngestRefused::PerNode { retry_after_seconds } => {
                Self::too_many("per_node_rate_limited", detail).retry_after(*retry_after_seconds)
            }
            IngestRefused::PerDomain { retry_after_seconds } => Self::too_many("capacity_exceeded", detail)
                .dimension("observability_ingest")
                .retry_after(*retry_after_seconds),
        }
    }
}

fn unread(error: BodyError) -> Problem {
    match error {
        BodyError::TooLarge { .. } => Problem::too_large("ingest_body_too_large", error.to_string()),
        BodyError::Broken(_) => Problem::bad_request("ingest_batch_malformed", error.to_string()),
    }
}

impl From<InflateError> for Problem {
    fn from(error: InflateError) -> Self {
        match error {
            InflateError::NotGzip(_) => Self::bad_request("ingest_encoding_invalid", error.to_string()),
            InflateError::TooLarge { .. } => Self::too_large("ingest_body_too_large", error.to_string()),
        }
    }
}

impl From<BatchError> for Problem {
    fn from(error: BatchError) -> Self {
        match error {
            BatchError::Malformed(why) => Self::bad_request("ingest_batch_malformed", why),
            BatchError::TooManyRecords { .. } => {
                Self::too_large("ingest_batch_too_many_records", error.to_string())
            }
        }
    }
}

impl From<BufferError> for Problem {
    fn from(error: BufferError) -> Self {
        match error {
            BufferError::Full => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "ingest_buffer_unavailable", error.to_string())
                    .retry_after(Some(BUFFER_RETRY_AFTER_SECONDS))
            }
            BufferError::NeverFits { .. } => Self::too_large("ingest_body_too_large", error.to_string()),
        }
    }
}
