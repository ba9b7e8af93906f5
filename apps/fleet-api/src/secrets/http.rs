//! `GET /v1/nodes/{id}/secrets/{name}?version=`.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};

use super::{ReadError, ReadLimitError, ReadLimiter, ReadRefused, Vault, is_secret_name, seal};
use crate::fleet::Fleet;
use crate::http::authentication;
use crate::http::problem::Problem;

const SECRET_VERSION: HeaderName = HeaderName::from_static("x-plexsphere-secret-version");
const SECRET_KEY_ID: HeaderName = HeaderName::from_static("x-plexsphere-secret-kid");

struct Secrets<L> {
    fleet: Arc<Fleet>,
    vault: Vault,
    limiter: L,
}

/// The routes of this context.
pub fn router<L: ReadLimiter>(fleet: Arc<Fleet>, vault: Vault, limiter: L) -> Router {
    let secrets = Arc::new(Secrets { fleet, vault, limiter });
    Router::new().route("/v1/nodes/{id}/secrets/{name}", get(read::<L>)).with_state(secrets)
}

async fn read<L: ReadLimiter>(
    State(secrets): State<Arc<Secrets<L>>>,
    path: Result<Path<(String, String)>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (id, name) = path.map(|Path(parts)| parts).unwrap_or_default(); // Not UTF-8: no node's id.
    let node = authentication::node(&secrets.fleet, &headers, &id)?;
    secrets.limiter.admit(node.id, node.domain).await?;
    if !is_secret_name(&name) {
        return Err(ReadError::NotFound.into());
    }
    let secret = secrets.vault.resolve(&name)?;
    secret.authorise(node.id, node.domain)?;
    let (version, value) = secret.read(version(&uri)?)?;
    let sealed = seal(&node.key, value.reveal()).map_err(|error| Problem::internal(&error))?;

    let mut response = (StatusCode::OK, sealed).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(SECRET_VERSION, version.into());
    let key_id = HeaderValue::from_str(&node.key_id).map_err(|error| Problem::internal(&error))?;
    headers.insert(SECRET_KEY_ID, key_id);
    Ok(response)
}

/// The version that the query asks for; nothing for the newest. Other parameters are left alone.
fn version(uri: &Uri) -> Result<Option<u64>, Problem> {
    let mut asked =
        uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.strip_prefix("version="));
    let Some(version) = asked.next() else { return Ok(None) };
    let digits = version.bytes().all(|byte| byte.is_ascii_digit());
    match version.parse() {
        Ok(version) if digits && version > 0 && asked.next().is_none() => Ok(Some(version)),
        _ => Err(Problem::bad_request("invalid_version", "version is one whole number, from 1")),
    }
}

impl From<ReadLimitError> for Problem {
    fn from(error: ReadLimitError) -> Self {
        let refused = match &error {
            ReadLimitError::Refused(refused) => refused,
            ReadLimitError::Unavailable(_) => return Self::internal(&error),
        };
        let (code, seconds) = match refused {
            ReadRefused::PerNode { retry_after_seconds } => ("per_node_rate_limited", retry_after_seconds),
            ReadRefused::PerDomain { retry_after_seconds } => {
                ("per_domain_rate_limited", retry_after_seconds)
            }
        };
        Self::too_many(code, refused.to_string()).retry_after(*seconds)
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        let (status, code) = match error {
            ReadError::NotFound => (StatusCode::NOT_FOUND, "secret_not_found"),
            ReadError::NotAllowed => (StatusCode::FORBIDDEN, "permission_denied"),
            ReadError::VersionNotFound => (StatusCode::NOT_FOUND, "secret_version_not_found"),
        };
        Self::new(status, code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_a_positive_number() {
        let version = |query: &str| version(&format!("/?{query}").parse().unwrap());
        assert_eq!(version(""), Ok(None));
        assert_eq!(version("trace=1&version=2"), Ok(Some(2)));
        for wrong in ["version=", "version=0", "version=-1", "version=+1", "version=x", "version=1&version=2"]
        {
            assert_eq!(version(wrong).unwrap_err().code(), "invalid_version", "{wrong}");
        }
    }
}
