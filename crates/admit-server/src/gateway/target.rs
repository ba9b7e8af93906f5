//! One upstream: its address and the connections to it.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use admit_listen::Workers;
use http::header::{HOST, HeaderValue, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Uri, Version};
use http_body::Body as _;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Builder, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;
use tower::Service;

use super::body::Upload;
use crate::policy::{Upstream, UpstreamLimits};

/// How long a connection is kept that nobody uses. Most servers close theirs after some time more, so that few requests
/// meet one that is being closed.
const POOL_TIME: Duration = Duration::from_secs(15);
/// How many unused connections each worker keeps to one upstream: as many as the listener has clients. Streams of HTTP/2
/// beyond that make new ones.
const POOL_SIZE: usize = 1_024;
/// How much of a response of HTTP/1.1 is read ahead, and the largest head of one, in bytes.
const READ_AHEAD: usize = 64 << 10;
/// The largest head of a response of HTTP/2, in bytes.
const HEAD_BYTES: u32 = 64 << 10;
/// After how long a silence an upstream of HTTP/2 is asked whether it is there, and how long it may take to say so.
const PING: Duration = Duration::from_secs(20);
/// The same for TCP, which notices a vanished peer of a WebSocket.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

type Connector = InTime<HttpsConnector<HttpConnector>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// HTTP/1.1 in the clear.
    Clear,
    /// Encrypted: HTTP/2 or HTTP/1.1, as the upstream has it.
    Encrypted,
    /// HTTP/2 in the clear.
    Http2,
}

#[derive(Clone, Debug)]
pub(super) struct Target {
    kind: Kind,
    scheme: Scheme,
    authority: Authority,
    /// One for each worker: a connection is driven by the thread that made it.
    clients: Arc<[Client<Connector, Upload>]>,
    /// For requests that ask for an upgrade, which only HTTP/1.1 has.
    upgrades: Option<Client<Connector, Upload>>,
}

impl Target {
    /// Nothing if the URL is none that is spoken.
    pub(super) fn new(upstream: &Upstream, tls: &ClientConfig, limits: &UpstreamLimits) -> Option<Self> {
        let (kind, scheme) = match upstream.0.scheme_str()? {
            "http" => (Kind::Clear, Scheme::HTTP),
            "https" => (Kind::Encrypted, Scheme::HTTPS),
            "h2c" => (Kind::Http2, Scheme::HTTP),
            _ => return None,
        };
        let authority = upstream.0.authority()?.clone();
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false); // The connector around it speaks TLS.
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(KEEP_ALIVE));
        tcp.set_connect_timeout(Some(limits.connect)); // Shared by the addresses of a name: one that hangs leaves time.
        let https = || HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
        let (one, both) = (https().enable_http1(), https().enable_all_versions());
        let one = InTime { connector: one.wrap_connector(tcp.clone()), limit: limits.connect };
        let both = InTime { connector: both.wrap_connector(tcp), limit: limits.connect };
        let client = || match kind {
            Kind::Clear => builder().build(one.clone()),
            Kind::Encrypted => builder().build(both.clone()),
            Kind::Http2 => builder().http2_only(true).build(one.clone()),
        };
        let clients = (0..Workers::count()).map(|_| client()).collect();
        let upgrades = (kind != Kind::Http2).then(|| builder().build(one.clone()));
        Some(Self { kind, scheme, authority, clients, upgrades })
    }

    /// Whether it can be asked for an upgrade.
    pub(super) fn has_upgrades(&self) -> bool {
        self.upgrades.is_some()
    }

    /// Whether it may be spoken to in HTTP/2.
    pub(super) fn has_http2(&self) -> bool {
        self.kind != Kind::Clear
    }

    pub(super) fn client(&self, upgrade: bool) -> Option<&Client<Connector, Upload>> {
        self.upgrades.as_ref().filter(|_| upgrade).or_else(|| self.clients.get(Workers::index()))
    }

    /// Puts the upstream's address into a request. An upstream in the clear sees the `Host` that the client sent; the
    /// others see their own, as certificates and virtual hosts go by it.
    pub(super) fn address(&self, request: &mut Request<Upload>, path: Option<PathAndQuery>) {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(self.scheme.clone());
        uri.authority = Some(self.authority.clone());
        uri.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default(); // It is whole.
        *request.version_mut() = Version::HTTP_11;
        if self.kind != Kind::Clear {
            request.headers_mut().remove(HOST);
        }
        // hyper sends no body with these unless it is told to.
        let is_told = matches!(*request.method(), Method::GET | Method::HEAD)
            && request.body().size_hint().exact().is_none();
        if is_told && self.kind != Kind::Http2 {
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.kind == Kind::Http2 { "h2c" } else { self.scheme.as_str() };
        write!(f, "{scheme}://{}", self.authority)
    }
}

fn builder() -> Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_TIME)
        .pool_max_idle_per_host(POOL_SIZE)
        .http1_max_buf_size(READ_AHEAD)
        .http2_max_header_list_size(HEAD_BYTES)
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PING);
    builder
}

/// Connects within a time, the handshake of TLS included.
#[derive(Clone, Debug)]
pub(super) struct InTime<C> {
    connector: C,
    limit: Duration,
}

impl<C> Service<Uri> for InTime<C>
where
    C: Service<Uri, Future: Send + 'static, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    type Response = C::Response;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connector.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = tokio::time::timeout(self.limit, self.connector.call(uri));
        Box::pin(async move {
            match connecting.await {
                Ok(connected) => connected.map_err(Into::into),
                Err(elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, elapsed).into()),
            }
        })
    }
}
