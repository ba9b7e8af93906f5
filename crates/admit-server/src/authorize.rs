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

/// The headers in which proxies tell a request's method and path.
const WAYS: [[&str; 2]; 2] =
    [["x-forwarded-method", "x-forwarded-uri"], ["x-original-method", "x-original-uri"]];

/// A question that asks about no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum NotAsked {
    #[error("refuse_with takes 401 or 403, once")]
    RefuseWith,
    /// The proxy sets the headers of one; another may come from its client, which would choose its own budgets.
    #[error(
        "the request is told in two ways; let the proxy remove X-Forwarded-* or X-Original-* that clients send"
    )]
    TwoWays,
    #[error("the headers that tell the request's method and path are no method and no path")]
    Headers,
}

/// Puts the request that is asked about in the place of the one that asks, and the answer into the form that the proxy
/// takes.
pub(crate) async fn original(mut request: Request, next: Next) -> Response {
    let (in_place, method, uri) = match refuse_with(&request).and_then(|in_place| asked(&request, in_place)) {
        Ok(asked) => asked,
        Err(error) => {
            let problem = Problem::new(StatusCode::BAD_REQUEST).detail(error.to_string());
            return problem.with("error", "bad_request").into_response();
        }
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

/// The status that refusals are to have.
fn refuse_with(request: &Request) -> Result<Option<StatusCode>, NotAsked> {
    let parameters = request.uri().query().unwrap_or_default().split('&');
    let mut asked = parameters.filter(|parameter| parameter.starts_with("refuse_with="));
    let Some(first) = asked.next() else { return Ok(None) };
    let known = REFUSE_WITH.iter().find(|(parameter, _)| first == *parameter).map(|(_, status)| *status);
    match (known, asked.next()) {
        (Some(known), None) => Ok(Some(known)),
        (known, _) if is_behind(request) => Ok(known), // The query is that of the request that is asked about.
        _ => Err(NotAsked::RefuseWith),
    }
}

/// Whether the path of the request that is asked about stands behind the prefix, which the router has taken off.
fn is_behind(request: &Request) -> bool {
    request.uri().path() != "/"
}

fn asked(
    request: &Request,
    in_place: Option<StatusCode>,
) -> Result<(Option<StatusCode>, Method, Uri), NotAsked> {
    let headers = request.headers();
    let mut ways = WAYS.iter().filter(|way| way.iter().any(|name| headers.contains_key(*name)));
    let Some([method, uri]) = ways.next() else {
        return Ok((in_place, request.method().clone(), request.uri().clone()));
    };
    if ways.next().is_some() || is_behind(request) {
        return Err(NotAsked::TwoWays);
    }
    let method = match told(headers, method)? {
        Some(method) => method.parse().map_err(|_| NotAsked::Headers)?,
        None => request.method().clone(),
    };
    let uri = match told(headers, uri)? {
        Some(uri) if uri.starts_with('/') => uri.parse().map_err(|_| NotAsked::Headers)?,
        Some(_) => return Err(NotAsked::Headers),
        None => request.uri().clone(),
    };
    Ok((in_place, method, uri))
}

/// The one value of a header.
fn told<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, NotAsked> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| NotAsked::Headers),
        (Some(_), Some(_)) => Err(NotAsked::Headers),
    }
}

/// The proxy may forward the request.
pub(crate) async fn allow() -> Response {
    StatusCode::OK.into_response()
}
