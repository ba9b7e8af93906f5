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
use http::{Method, Request, Response, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Builder, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;
use tower::Service;

use super::body::Upload;
use super::pool::{Borrowed, Pool};
use crate::policy::{Upstream, UpstreamLimits};

/// How long a connection is kept that nobody uses: after that it is used no more, and soon closed. Most servers close theirs after some time more, so that few requests
/// meet one that is being closed.
pub(super) const POOL_TIME: Duration = Duration::from_secs(15);
/// How many unused connections each worker keeps to one upstream: as many as the listener has clients. Requests at once
/// may use more, as many as there are streams of HTTP/2; beyond this they are closed after their responses.
pub(super) const POOL_SIZE: usize = 1_024;
/// How much of a response of HTTP/1.1 is read ahead, and the largest head of one, in bytes.
pub(super) const READ_AHEAD: usize = 64 << 10;
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

/// Those of one worker.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // There is one for each worker.
enum Connections {
    Clear(Pool),
    /// Of whichever protocol.
    Any(Client<Connector, Upload>),
}

/// Why an upstream did not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    #[error("no connection")]
    Connect(#[source] BoxError),
    #[error(transparent)]
    BrokeOff(#[from] hyper::Error),
    #[error(transparent)]
    Client(#[from] hyper_util::client::legacy::Error),
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Debug)]
pub(super) struct Target {
    kind: Kind,
    scheme: Scheme,
    authority: Authority,
    /// One for each worker: a connection is driven by the thread that made it.
    workers: Arc<[Connections]>,
    /// For requests that ask for an upgrade, which only HTTP/1.1 has. None of its connections is kept: the next may be asked
    /// for by another worker.
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
        let one = InTime::new(one.wrap_connector(tcp.clone()), limits.connect);
        let both = InTime::new(both.wrap_connector(tcp.clone()), limits.connect);
        let clear = InTime::new(tcp, limits.connect);
        let connections = || match kind {
            Kind::Clear => Connections::Clear(Pool::new(clear.clone(), upstream.0.clone())),
            Kind::Encrypted => Connections::Any(builder().build(both.clone())),
            Kind::Http2 => Connections::Any(builder().http2_only(true).build(one.clone())),
        };
        let workers = (0..Workers::count()).map(|_| connections()).collect();
        let upgrades = (kind != Kind::Http2).then(|| builder().pool_max_idle_per_host(0).build(one.clone()));
        Some(Self { kind, scheme, authority, workers, upgrades })
    }

    /// Whether it can be asked for an upgrade.
    pub(super) fn has_upgrades(&self) -> bool {
        self.upgrades.is_some()
    }

    /// Whether it may be spoken to in HTTP/2.
    pub(super) fn has_http2(&self) -> bool {
        self.kind != Kind::Clear
    }

    /// Sends a request for `path` on a connection of this worker. Where the response tells when it has ended, the connection
    /// comes with it.
    pub(super) async fn send(
        &self,
        mut request: Request<Upload>,
        path: Option<PathAndQuery>,
        upgrade: bool,
    ) -> Result<(Response<Incoming>, Option<Borrowed>), Unanswered> {
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let client = match (&self.upgrades, self.workers.get(Workers::index())) {
            (Some(client), _) if upgrade => client,
            (_, Some(Connections::Any(client))) => client,
            (_, Some(Connections::Clear(pool))) => {
                self.settle(&mut request);
                *request.uri_mut() = path.into();
                if !request.headers().contains_key(HOST) {
                    let host = HeaderValue::from_str(self.authority.as_str());
                    request.headers_mut().extend(host.ok().map(|host| (HOST, host)));
                }
                let (response, borrowed) = pool.send(request).await?;
                return Ok((response, Some(borrowed)));
            }
            (_, None) => return Err(Unanswered::Connect("this thread is no worker".into())), // There is none such.
        };
        self.settle(&mut request);
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(self.scheme.clone());
        uri.authority = Some(self.authority.clone());
        uri.path_and_query = Some(path);
        *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default(); // It is whole.
        Ok((client.request(request).await?, None))
    }

    /// An upstream in the clear sees the `Host` that the client sent; the others see their own, as certificates and virtual
    /// hosts go by it.
    fn settle(&self, request: &mut Request<Upload>) {
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

impl<C> InTime<C> {
    pub(super) fn new(connector: C, limit: Duration) -> Self {
        Self { connector, limit }
    }
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
