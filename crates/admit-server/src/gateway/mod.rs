//! A streaming reverse proxy to one upstream.
//!
//! Bodies pass as they come, in both directions, also after an upgrade (WebSocket). A request is sent again by itself only
//! where nothing of it was sent before. What the upstream does wrong is told apart: 502 if it cannot be reached or breaks
//! off, 504 if it does not answer in time.

mod forwarded;
mod hop_by_hop;
mod upgrade;

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use admit_listen::Peer;
use admit_tower::client_ip::TrustedProxies;
use admit_tower::{CorrelationId, Problem};
use axum::body::Body;
use http::uri::{Authority, Scheme};
use http::{Request, Response, StatusCode, Uri, Version};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower::Service;

use crate::policy::Upstream;

/// How long the upstream may take to accept a connection.
const CONNECT_TIME_LIMIT: Duration = Duration::from_secs(5);
/// How long the upstream may take until the head of its response.
const HEAD_TIME_LIMIT: Duration = Duration::from_secs(60);
/// How long a connection to the upstream is kept that nobody uses. Most servers close theirs after some time more.
const IDLE_TIME_LIMIT: Duration = Duration::from_secs(15);

/// Sends requests to the upstream. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Gateway {
    client: Client<HttpConnector, Body>,
    scheme: Scheme,
    authority: Authority,
    trusted: TrustedProxies,
}

/// An upstream that the gateway cannot speak to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the upstream {0} cannot be spoken to: it has no host, or a scheme other than http")]
pub struct GatewayError(Uri);

impl Gateway {
    /// A gateway to the upstream. It makes no connection yet.
    ///
    /// # Errors
    /// [`GatewayError`] if the upstream is not spoken to in plain HTTP.
    pub fn new(upstream: &Upstream, trusted: TrustedProxies) -> Result<Self, GatewayError> {
        let unspoken = || GatewayError(upstream.0.clone());
        let scheme =
            upstream.0.scheme().filter(|scheme| **scheme == Scheme::HTTP).cloned().ok_or_else(unspoken)?;
        let authority = upstream.0.authority().cloned().ok_or_else(unspoken)?;
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIME_LIMIT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_TIME_LIMIT)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self { client, scheme, authority, trusted })
    }

    /// The same connections, with other proxies whose word is taken.
    #[must_use]
    pub fn trusting(&self, trusted: TrustedProxies) -> Self {
        Self { trusted, ..self.clone() }
    }

    async fn forward(self, mut request: Request<Body>) -> Response<Body> {
        let id = request.extensions().get().cloned().unwrap_or_else(CorrelationId::random);
        let upgrade = upgrade::asked(&mut request);
        hop_by_hop::strip(request.headers_mut());
        if let Some(upgrade) = &upgrade {
            upgrade.ask(request.headers_mut());
        }
        let peer = request.extensions().get::<Peer>().copied();
        forwarded::set(request.headers_mut(), peer.map(|Peer(address)| address.ip()), &self.trusted);
        let path = request.uri().path_and_query().cloned();
        let mut uri = Uri::builder().scheme(self.scheme).authority(self.authority);
        if let Some(path) = path {
            uri = uri.path_and_query(path);
        }
        let Ok(uri) = uri.build() else {
            return problem(StatusCode::BAD_REQUEST, "the request names no path", "bad_request");
        };
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_11;

        match tokio::time::timeout(HEAD_TIME_LIMIT, self.client.request(request)).await {
            Ok(Ok(response)) => {
                let mut response = response.map(Body::new);
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    return match upgrade {
                        Some(upgrade) => upgrade.join(response),
                        None => {
                            tracing::error!(correlation_id = %id, "the upstream switched protocols unasked");
                            bad_gateway()
                        }
                    };
                }
                hop_by_hop::strip(response.headers_mut());
                response
            }
            Ok(Err(error)) => {
                let cause = &error as &(dyn Error + 'static);
                tracing::error!(correlation_id = %id, error = cause, "the upstream did not answer");
                if is_timeout(cause) { too_slow() } else { bad_gateway() }
            }
            Err(_) => {
                tracing::error!(correlation_id = %id, limit = ?HEAD_TIME_LIMIT, "the upstream did not answer in time");
                too_slow()
            }
        }
    }
}

fn is_timeout(mut error: &(dyn Error + 'static)) -> bool {
    loop {
        if error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::TimedOut)
        {
            return true;
        }
        let Some(source) = error.source() else { return false };
        error = source;
    }
}

fn bad_gateway() -> Response<Body> {
    problem(
        StatusCode::BAD_GATEWAY,
        "the service behind this gateway cannot be reached, or broke off",
        "bad_gateway",
    )
}

fn too_slow() -> Response<Body> {
    problem(
        StatusCode::GATEWAY_TIMEOUT,
        "the service behind this gateway did not answer in time",
        "gateway_timeout",
    )
}

fn problem(status: StatusCode, detail: &'static str, error: &'static str) -> Response<Body> {
    Problem::new(status).detail(detail).with("error", error).into_response()
}

impl Service<Request<Body>> for Gateway {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let gateway = self.clone();
        Box::pin(async move { Ok(gateway.forward(request).await) })
    }
}
