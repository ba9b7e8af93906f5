//! `GET /memory/jobs/{id}`. It spends only what a caller has of the second: a client waits for its jobs here.

use admit_tower::Problem;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use super::{App, respond, time, unavailable};
use crate::keys::Caller;
use crate::storage::Job;

#[derive(Serialize)]
struct JobBody {
    job_id: Uuid,
    ingest_id: String,
    project: String,
    status: &'static str,
    items: i64,
    items_indexed: i64,
    failures: i32,
    created_at: String,
    started_at: Option<String>,
    finished_at: Option<String>,
}

pub(super) async fn job(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Response {
    // Only as it was told, which is the hyphenated form: no job has another id.
    let id =
        id.ok().filter(|id| id.len() == Hyphenated::LENGTH).and_then(|Path(id)| Uuid::try_parse(&id).ok());
    let job = match id {
        Some(id) => app.storage.job(&caller.tenant, id).await,
        None => Ok(None),
    };
    match job {
        Ok(Some(job)) => Json(JobBody::from(job)).into_response(),
        Ok(None) => {
            let problem =
                Problem::new(StatusCode::NOT_FOUND).detail("no such job").with("error", "job_not_found");
            respond(problem)
        }
        Err(cause) => unavailable(&cause),
    }
}

impl From<Job> for JobBody {
    fn from(job: Job) -> Self {
        Self {
            job_id: job.id,
            ingest_id: job.ingest_id,
            project: job.project,
            status: job.status.as_str(),
            items: job.items,
            items_indexed: job.items_indexed,
            failures: job.failures,
            created_at: time(job.created_at),
            started_at: job.started_at.map(time),
            finished_at: job.finished_at.map(time),
        }
    }
}
