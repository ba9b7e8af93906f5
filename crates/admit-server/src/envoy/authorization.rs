//! Envoy's `ext_authz` over gRPC: whether a request may run, decided as at `/authorize`.
//!
//! What is decided is told as the answer that the client would get: fields on what is allowed, and status, headers and
//! problem of what is not, also while the store is down.

use std::net::{IpAddr, SocketAddr};

use admit_listen::Peer;
use admit_tower::Problem;
use axum::Router;
use axum::body::Body;
use envoy_types::pb::envoy::config::core::v3::address::Address;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::auth::v3::attribute_context::HttpRequest;
use envoy_types::pb::envoy::service::auth::v3::authorization_server::Authorization;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{
    AttributeContext, CheckRequest, CheckResponse, DeniedHttpResponse, OkHttpResponse,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::rpc::Status as Code;
use http::{HeaderMap, HeaderName, StatusCode};
use http_body_util::{BodyExt, Collected, Limited};
use tonic::{Request, Response, Status, async_trait};
use tower::ServiceExt;

/// The longest answer to pass on, in bytes: a problem document.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Asks the router that decides on requests as they are.
#[derive(Clone, Debug)]
pub(super) struct Checks(pub(super) Router);

#[async_trait]
impl Authorization for Checks {
    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        let attributes = request.into_inner().attributes.unwrap_or_default();
        let http = attributes
            .request
            .as_ref()
            .and_then(|request| request.http.as_ref())
            .ok_or_else(|| Status::invalid_argument("the attributes have no HTTP request"))?;
        // Envoy may let pass what there is no decision about, and clients choose what cannot be read: it is denied.
        let answer = match asked(http) {
            Some(asked) => {
                let Ok(answer) = self.0.clone().oneshot(with_peer(asked, &attributes)).await;
                answer
            }
            None => {
                let problem = Problem::new(StatusCode::BAD_REQUEST).with("error", "bad_request");
                problem
                    .detail("the method, the path or a header of the request cannot be read")
                    .into_response()
            }
        };
        let (head, body) = answer.into_parts();
        let headers = options(&head.headers);
        let (code, response) = match head.status {
            StatusCode::OK => {
                let ok = OkHttpResponse { response_headers_to_add: headers, ..OkHttpResponse::default() };
                (tonic::Code::Ok, HttpResponse::OkResponse(ok))
            }
            status => {
                let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
                let body = body.map(Collected::to_bytes).unwrap_or_default(); // Made here, and short.
                let denied = DeniedHttpResponse {
                    status: Some(HttpStatus { code: status.as_u16().into() }),
                    headers,
                    body: String::from_utf8_lossy(&body).into_owned(),
                };
                (tonic::Code::PermissionDenied, HttpResponse::DeniedResponse(denied))
            }
        };
        Ok(Response::new(CheckResponse {
            status: Some(Code { code: code.into(), ..Code::default() }),
            http_response: Some(response),
            ..CheckResponse::default()
        }))
    }
}

/// The request that is asked about, without its body.
fn asked(http: &HttpRequest) -> Option<http::Request<Body>> {
    let path = (http.path.starts_with('/') || http.path == "*").then_some(&http.path)?;
    let mut asked =
        http::Request::builder().method(http.method.as_str()).uri(path).body(Body::empty()).ok()?;
    let single = http.headers.iter().map(|(name, value)| (name, value.as_bytes()));
    let listed = http.header_map.iter().flat_map(|map| &map.headers).map(|header| {
        let is_raw = !header.raw_value.is_empty();
        (&header.key, if is_raw { header.raw_value.as_slice() } else { header.value.as_bytes() })
    });
    for (name, value) in single.chain(listed).filter(|(name, _)| !name.starts_with(':')) {
        let value = http::HeaderValue::from_bytes(value);
        asked.headers_mut().append(name.parse::<HeaderName>().ok()?, value.ok()?);
    }
    Some(asked)
}

fn with_peer(mut asked: http::Request<Body>, attributes: &AttributeContext) -> http::Request<Body> {
    if let Some(peer) = peer(attributes) {
        asked.extensions_mut().insert(Peer(SocketAddr::new(peer, 0)));
    }
    asked
}

fn peer(attributes: &AttributeContext) -> Option<IpAddr> {
    match attributes.source.as_ref()?.address.as_ref()?.address.as_ref()? {
        Address::SocketAddress(socket) => socket.address.parse().ok(),
        _ => None,
    }
}

fn options(headers: &HeaderMap) -> Vec<HeaderValueOption> {
    super::decide::headers(headers).into_iter().map(option).collect()
}

fn option(header: HeaderValue) -> HeaderValueOption {
    HeaderValueOption { header: Some(header), ..HeaderValueOption::default() }
}
