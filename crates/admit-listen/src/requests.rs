//! What each request of a connection meets before the router, and each answer behind it.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::protocol::Protocol;
use crate::stream::{Answer, Running};

/// Who is at the other end of the connection, in the extensions of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// The connection is encrypted, if this is in the extensions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encrypted;

/// The requests of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    pub(crate) router: TowerToHyperService<Router>,
    pub(crate) peer: Peer,
    pub(crate) encrypted: Option<Encrypted>,
    pub(crate) protocol: Protocol,
    /// The most headers. HTTP/1.1 has counted them itself.
    pub(crate) headers: usize,
    pub(crate) running: watch::Sender<usize>,
    /// Is set when the connection begins to speak another protocol.
    pub(crate) switched: Arc<AtomicBool>,
    pub(crate) shutdown: CancellationToken,
}

impl Service<Request<Incoming>> for Requests {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let running = Running::start(&self.running);
        if request.headers().len() > self.headers {
            let refusal = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response();
            return Box::pin(std::future::ready(Ok(refusal)));
        }
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.peer);
        if let Some(encrypted) = self.encrypted {
            request.extensions_mut().insert(encrypted);
        }
        let is_connect = *request.method() == Method::CONNECT; // Behind which comes a tunnel.
        let response = self.router.call(request);
        let (protocol, switched, shutdown) = (self.protocol, self.switched.clone(), self.shutdown.clone());
        Box::pin(async move {
            let mut response = response.await?;
            if protocol == Protocol::Http2 {
                return Ok(response.map(|body| Body::new(Answer::new(body, running))));
            }
            let status = response.status();
            if status == StatusCode::SWITCHING_PROTOCOLS || is_connect && status.is_success() {
                switched.store(true, Ordering::Release);
            } else if shutdown.is_cancelled() {
                // hyper closes the connection behind such an answer.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        })
    }
}
