//! Forward-auth: another proxy asks whether a request may run, and forwards it or not.
//!
//! nginx (`auth_request`), Traefik, Caddy and HAProxy tell the request that they ask about in headers; Envoy's `ext_authz`
//! sends its method and path, behind a prefix. Allow is always 200, as Envoy takes any other 2xx for the client's answer.
//! A body is not seen here, so that keys and costs cannot come from one.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};

use admit_tower::Problem;

/// Where it is asked. What stands behind it is the path of the request that is asked about, unless a header has it.
pub const AUTHORIZE: &str = "/authorize";

/// The status that the answer would have, where `?refuse_with=` has another in its place.
const X_ADMIT_STATUS: HeaderName = HeaderName::from_static("x-admit-status");

/// The problem document of such an answer, for proxies that take headers of it and no body.
const X_ADMIT_PROBLEM: HeaderName = HeaderName::from_static("x-admit-problem");

/// The longest problem document that a header carries, in bytes: proxies read heads of 4 KiB by default.
const MAX_PROBLEM_BYTES: usize = 2 << 10;

/// nginx passes on no refusal but these.
const REFUSE_WITH: [(&str, StatusCode); 2] =
    [("refuse_with=403", StatusCode::FORBIDDEN), ("refuse_with=401", StatusCode::UNAUTHORIZED)];

/// One of these headers tells the method; likewise for the path. A proxy sets its own and may let its client's others
/// through, so that two are none.
const METHODS: [&str; 2] = ["x-forwarded-method", "x-original-method"];
const URIS: [&str; 2] = ["x-forwarded-uri", "x-original-uri"];

/// Puts the request that is asked about in the place of the one that asks, and the answer into the form that the proxy
/// takes.
pub(crate) async fn original(mut request: Request, next: Next) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let in_place =
        REFUSE_WITH.iter().find(|(parameter, _)| query.split('&').any(|found| found == *parameter));
    let in_place = in_place.map(|(_, status)| *status);
    let (Some(method), Some(uri)) = (asked_method(&request), asked_uri(&request)) else {
        let detail = "send one header that tells the request's method and one that tells its path, each once";
        return Problem::new(StatusCode::BAD_REQUEST)
            .detail(detail)
            .with("error", "bad_request")
            .into_response();
    };
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.body_mut() = Body::empty();
    let response = next.run(request).await;
    match in_place.filter(|_| response.status() != StatusCode::OK) {
        Some(status) => in_its_place(status, response).await,
        None => response,
    }
}

/// The answer with another status, and its own and its body in headers.
async fn in_its_place(status: StatusCode, response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    parts.headers.insert(X_ADMIT_STATUS, HeaderValue::from(parts.status.as_u16()));
    parts.status = status;
    let problem = to_bytes(body, MAX_PROBLEM_BYTES).await.unwrap_or_default();
    if let Ok(value) = HeaderValue::from_bytes(&problem) {
        parts.headers.insert(X_ADMIT_PROBLEM, value);
    }
    Response::from_parts(parts, Body::from(problem))
}

/// The proxy may forward the request.
pub(crate) async fn allow() -> Response {
    StatusCode::OK.into_response()
}

fn asked_method(request: &Request) -> Option<Method> {
    match told(request.headers(), &METHODS) {
        Some(told) => told?.parse().ok(),
        None => Some(request.method().clone()),
    }
}

fn asked_uri(request: &Request) -> Option<Uri> {
    match told(request.headers(), &URIS) {
        Some(told) => told.filter(|uri| uri.starts_with('/'))?.parse().ok(),
        None => Some(request.uri().clone()), // Without the prefix, which the router has taken off.
    }
}

/// Nothing if no header tells it; nothing within if the one that does is no text, or is not alone.
fn told<'h>(headers: &'h HeaderMap, names: &[&str]) -> Option<Option<&'h str>> {
    let mut values = names.iter().flat_map(|name| headers.get_all(*name));
    let value = values.next()?;
    Some(value.to_str().ok().filter(|_| values.next().is_none()))
}
