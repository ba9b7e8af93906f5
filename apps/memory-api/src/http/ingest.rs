//! `POST /memory/ingest`.

use std::sync::Arc;

use admit::IdempotencyError;
use admit_tower::{Rejection, Run};
use axum::extract::{Extension, State};
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use uuid::Uuid;

use super::{App, respond, unavailable};
use crate::batch::Batch;
use crate::keys::Caller;
use crate::storage::{JobStatus, NewJob};

#[derive(Serialize)]
struct Accepted<'a> {
    job_id: Uuid,
    ingest_id: &'a str,
    status: &'static str,
}

/// Keeps the batch as a job. The job and the record of this very answer are committed together: a client that lost the
/// answer, at whatever moment, asks again and gets it.
pub(super) async fn ingest(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Extension(batch): Extension<Arc<Batch>>,
    Extension(run): Extension<Run>,
) -> Response {
    let job = NewJob {
        id: Uuid::new_v4(),
        tenant: caller.tenant.to_string(),
        ingest_id: run.key().to_owned(),
        project: batch.project.clone(),
        items: batch.items.clone(),
    };
    let Ok(response) = accepted(&job) else { return respond(Rejection::Internal.problem()) };
    // 202 is a status that is recorded.
    let Ok(answer) = run.answer(response) else { return respond(Rejection::Internal.problem()) };
    let id = job.id;
    let kept = app.storage.enqueue(job, answer.ticket(), answer.outcome(), answer.terms(), answer.now());
    match kept.await {
        Ok(()) => {
            tracing::debug!(job = %id, items = batch.items.len(), "accepted");
            app.wake.notify_one();
            answer.into_response()
        }
        Err(IdempotencyError::Unavailable(cause)) => unavailable(&cause),
        Err(lost @ IdempotencyError::TicketLost) => unavailable(&lost),
    }
}

fn accepted(job: &NewJob) -> Result<http::Response<Bytes>, Box<dyn std::error::Error>> {
    let body = Accepted { job_id: job.id, ingest_id: &job.ingest_id, status: JobStatus::Queued.as_str() };
    let mut response = http::Response::new(Bytes::from(serde_json::to_vec(&body)?));
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(LOCATION, HeaderValue::try_from(format!("/memory/jobs/{}", job.id))?);
    Ok(response)
}
