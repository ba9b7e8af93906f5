//! Checks the shape of a request before anything is charged for it.
//!
//! What a request asks for goes into its extensions, or else what is wrong with it. A malformed request then spends only
//! what it has of the second, and is answered with the problem in the handler's place.

use std::sync::Arc;
use std::time::Duration;

use admit_tower::Problem;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use http::request::Parts;
use http::{Extensions, HeaderMap, StatusCode};
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::respond;
use crate::batch::{Batch, MAX_BODY_BYTES};
use crate::keys::Caller;
use crate::limits::Endpoint;
use crate::params;

/// How long a body may take to arrive.
const BODY_TIME_LIMIT: Duration = Duration::from_secs(10);
/// How much of a body that is too long is read all the same, so that a client that is still sending gets to read why it
/// was refused; beyond that its connection is cut.
const MAX_DRAINED_BYTES: usize = 8 * MAX_BODY_BYTES;

/// Why the request is not run, in its extensions.
#[derive(Clone)]
pub(super) struct Malformed(pub(super) Box<Problem>);

fn malformed(status: StatusCode, detail: String, error: &'static str) -> Malformed {
    Malformed(Box::new(Problem::new(status).detail(detail).with("error", error)))
}

/// Reads the parameters of a `GET` request.
pub(super) async fn check_parameters(
    State(endpoint): State<Endpoint>,
    mut request: Request,
    next: Next,
) -> Response {
    let query = request.uri().query();
    let tenant = request.extensions().get::<Caller>().map(|caller| Arc::clone(&caller.tenant));
    let tenant = tenant.as_deref().unwrap_or_default(); // Authentication comes first, so there is a caller.
    let mut asked = Extensions::new();
    let read = match endpoint {
        Endpoint::Query => params::query(query, tenant).map(|query| drop(asked.insert(query))),
        Endpoint::Projects => params::list(query, "projects", tenant).map(|list| drop(asked.insert(list))),
        Endpoint::Skills => params::list(query, "skills", tenant).map(|list| drop(asked.insert(list))),
        Endpoint::Jobs | Endpoint::Ingest => params::none(query),
    };
    if let Err(error) = read {
        asked.insert(malformed(StatusCode::BAD_REQUEST, error.to_string(), "invalid_parameter"));
    }
    request.extensions_mut().extend(asked);
    next.run(request).await
}

/// Answers a malformed request, when its budgets have admitted it.
pub(super) async fn refuse_malformed(mut request: Request, next: Next) -> Response {
    match request.extensions_mut().remove::<Malformed>() {
        Some(Malformed(problem)) => respond(*problem),
        None => next.run(request).await,
    }
}

/// Reads the body of an ingest.
pub(super) async fn check_batch(request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let body = match batch(&parts, body).await {
        Ok((batch, bytes)) => {
            parts.extensions.insert(Arc::new(batch));
            Body::from(bytes)
        }
        Err(wrong) => {
            parts.extensions.insert(wrong);
            Body::empty()
        }
    };
    next.run(Request::from_parts(parts, body)).await
}

async fn batch(parts: &Parts, body: Body) -> Result<(Batch, Bytes), Malformed> {
    params::none(parts.uri.query())
        .map_err(|error| malformed(StatusCode::BAD_REQUEST, error.to_string(), "invalid_parameter"))?;
    check_media(&parts.headers)?;
    let waits_for_leave = parts.headers.contains_key(EXPECT);
    let bytes = match timeout(BODY_TIME_LIMIT, read(body, waits_for_leave)).await {
        Ok(read) => read?,
        Err(_) => {
            let detail = format!("the body did not arrive within {} seconds", BODY_TIME_LIMIT.as_secs());
            return Err(malformed(StatusCode::REQUEST_TIMEOUT, detail, "body_too_slow"));
        }
    };
    let batch = Batch::parse(&bytes)
        .map_err(|error| malformed(StatusCode::BAD_REQUEST, error.to_string(), "invalid_body"))?;
    Ok((batch, bytes))
}

fn check_media(headers: &HeaderMap) -> Result<(), Malformed> {
    let unsupported = |detail: &str| {
        Err(malformed(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail.to_owned(), "unsupported_media_type"))
    };
    let media = headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let essence = media.map(|media| media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    let is_json = |essence: &str| essence == "application/json" || essence.ends_with("+json");
    if essence.is_some_and(|essence| !is_json(&essence)) {
        return unsupported("the body has to be JSON: send Content-Type: application/json");
    }
    let encoding = headers.get(CONTENT_ENCODING).map(|value| value.to_str().unwrap_or_default());
    if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        return unsupported("the body has to come as it is, without a Content-Encoding");
    }
    Ok(())
}

async fn read(mut body: Body, waits_for_leave: bool) -> Result<Bytes, Malformed> {
    use http_body::Body as _;
    let too_large = || {
        let detail =
            format!("the body is longer than {MAX_BODY_BYTES} bytes; send the items in smaller batches");
        malformed(StatusCode::PAYLOAD_TOO_LARGE, detail, "body_too_large")
    };
    let announced = body.size_hint().lower();
    if announced > MAX_DRAINED_BYTES as u64 || (waits_for_leave && announced > MAX_BODY_BYTES as u64) {
        return Err(too_large());
    }
    let (mut read, mut length) = (Vec::with_capacity(announced.min(MAX_BODY_BYTES as u64) as usize), 0);
    while let Some(frame) = body.frame().await {
        let broke_off =
            |_| malformed(StatusCode::BAD_REQUEST, "the body broke off".into(), "body_unreadable");
        let Ok(data) = frame.map_err(broke_off)?.into_data() else { continue };
        length += data.len();
        if length > MAX_DRAINED_BYTES {
            return Err(too_large());
        }
        if length <= MAX_BODY_BYTES {
            read.extend_from_slice(&data);
        }
    }
    if length > MAX_BODY_BYTES { Err(too_large()) } else { Ok(read.into()) }
}
