//! `POST /v1/projects/{project_id}/sessions`.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use http::header::{CACHE_CONTROL, LOCATION};
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use tracing::Instrument;
use uuid::Uuid;

use super::{
    Asker, IssuanceLedger, IssuanceLimitError, IssuanceLimiter, IssueError, Issued, Issuer, Registry,
    RegistryError, RequestError, Session, SessionRequest,
};
use crate::fleet::{self, Fleet, ProjectId};
use crate::http::authentication;
use crate::http::body::{self, BodyError};
use crate::http::problem::Problem;

/// The largest body: a target of the largest form is about as large.
const MAX_BODY_BYTES: usize = 128 << 10;

const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

struct Access<L, M> {
    fleet: Arc<Fleet>,
    registry: Registry,
    issuer: Issuer<L, M>,
}

#[derive(Serialize)]
struct Receipt<'a> {
    session_id: Uuid,
    token: &'a str,
    expires_at: &'a str,
    session: &'a Session,
}

/// The routes of this context.
pub fn router<L: IssuanceLimiter, M: IssuanceLedger>(
    fleet: Arc<Fleet>,
    registry: Registry,
    issuer: Issuer<L, M>,
) -> Router {
    let access = Arc::new(Access { fleet, registry, issuer });
    Router::new().route("/v1/projects/{project_id}/sessions", post(open::<L, M>)).with_state(access)
}

async fn open<L: IssuanceLimiter, M: IssuanceLedger>(
    State(access): State<Arc<Access<L, M>>>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let operator = authentication::operator(&access.fleet, &head.headers)?;
    let project = path.ok().and_then(|Path(id)| fleet::uuid(&id)).map(ProjectId::new);
    // A project that is not the operator's is none that it learns of.
    let project = project.filter(|project| operator.projects.contains(project));
    let project = project.ok_or(RegistryError::ProjectNotFound)?;
    let (domain, policy) = access.registry.project(project)?;
    let body = body::read(&head.headers, body, MAX_BODY_BYTES).await.map_err(unread)?;
    let request = SessionRequest::parse(&body)?;
    access.registry.resource_of(request.resource, project)?;

    let asker = Asker { identity: operator.identity, project, domain, policy };
    // On its own, so that it ends even if the client hangs up.
    let issuing = tokio::spawn(access.issuer.clone().issue(asker, request).in_current_span());
    let issued = issuing.await.map_err(|panicked| Problem::internal(&panicked))??;
    respond(&issued)
}

fn respond(issued: &Issued) -> Result<Response, Problem> {
    let Issued { session, token, replayed } = issued;
    let receipt = Receipt { session_id: session.id, token, expires_at: &session.expires_at, session };
    let mut response = (StatusCode::CREATED, Json(receipt)).into_response();
    let location = format!("/v1/projects/{}/sessions/{}", session.project_id, session.id);
    let location = HeaderValue::try_from(location).map_err(|error| Problem::internal(&error))?;
    response.headers_mut().insert(LOCATION, location);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if *replayed {
        response.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

fn unread(error: BodyError) -> Problem {
    match error {
        BodyError::TooLarge { .. } => Problem::too_large("body_too_large", error.to_string()),
        BodyError::Broken(_) => Problem::bad_request("invalid_body", error.to_string()),
    }
}

impl From<RegistryError> for Problem {
    fn from(error: RegistryError) -> Self {
        let code = match error {
            RegistryError::ProjectNotFound => "project_not_found",
            RegistryError::ResourceNotFound => "resource_not_found",
        };
        Self::not_found(code, error.to_string())
    }
}

impl From<RequestError> for Problem {
    fn from(error: RequestError) -> Self {
        let code = match error {
            RequestError::InvalidBody(_) => "invalid_body",
            RequestError::InvalidTarget(_) => "invalid_target",
        };
        Self::bad_request(code, error.to_string())
    }
}

impl From<IssueError> for Problem {
    fn from(error: IssueError) -> Self {
        match &error {
            // No Retry-After: clients of the platform tell it from the other limits by that.
            IssueError::Limit(IssuanceLimitError::Refused(refused)) => {
                let detail = format!("{refused} (dimension access_issuance_domain)");
                Self::too_many("session_limit_exceeded", detail)
            }
            IssueError::InFlight => Self::new(StatusCode::CONFLICT, "idempotent_replay", error.to_string()),
            IssueError::Mismatch => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused", error.to_string())
            }
            _ => Self::internal(&error),
        }
    }
}
