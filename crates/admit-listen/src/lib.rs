//! The listener: connections and their limits, and an end without broken requests.
//!
//! ```
//! use admit_listen::Limits;
//! use axum::{Router, routing::get};
//! use tokio::net::TcpListener;
//! use tokio_util::sync::CancellationToken;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! let (router, shutdown) = (Router::new().route("/", get(async || "hello")), CancellationToken::new());
//! let serving = tokio::spawn(admit_listen::serve(listener, router, Limits::default(), shutdown.clone()));
//!
//! shutdown.cancel(); // On a signal, say.
//! serving.await?; // The requests that ran have ended.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::map_response_with_state;
use axum::response::Response;
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;

/// hyper takes no smaller buffer.
const MIN_HEAD_BYTES: usize = 8 << 10;
/// How long nothing is accepted after the system had no more sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who is at the other end of the connection, in the extensions of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// What clients may take of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most connections at once, 1,024 by default; more wait in the listener's queue.
    pub connections: usize,
    /// How long a client may take to send a request's head, or stay silent between requests. 20 s by default.
    pub head_time: Duration,
    /// How long a client may read nothing of a response before its connection is cut. 20 s by default.
    pub stall_time: Duration,
    /// The most headers of a request, 64 by default. More are answered with 431.
    pub headers: usize,
    /// The most bytes of a request's head, 16 KiB by default and no less than 8 KiB. More are answered with 431.
    pub head_bytes: usize,
    /// How long connections on which no request runs stay open once the shutdown begins, 500 ms by default: a request
    /// may be on its way, or wait to be read. Each answer then tells its client that it is the connection's last.
    pub linger_time: Duration,
    /// How long requests may go on after that, 35 s by default.
    pub shutdown_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1_024,
            head_time: Duration::from_secs(20),
            stall_time: Duration::from_secs(20),
            headers: 64,
            head_bytes: 16 << 10,
            linger_time: Duration::from_millis(500),
            shutdown_time: Duration::from_secs(35),
        }
    }
}

/// Serves until `shutdown` is cancelled, then lets the requests that run end.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, shutdown: CancellationToken) {
    let router = router.layer(map_response_with_state(shutdown.clone(), last_of_its_connection));
    let graceful = GracefulShutdown::new();
    let connections = Arc::new(Semaphore::new(limits.connections));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &connections) => accepted,
            () = shutdown.cancelled() => break,
        };
        let (stream, peer, permit) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(cause = %error, "a connection was not accepted");
                // Nothing tells when there are sockets again.
                let _ = tokio::time::timeout(ACCEPT_PAUSE, shutdown.cancelled()).await;
                continue;
            }
        };
        let mut http = Builder::new(TokioExecutor::new()).http1_only();
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_time)
            .max_headers(limits.headers)
            .max_buf_size(limits.head_bytes.max(MIN_HEAD_BYTES));
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(limits.stall_time));
        let service = TowerToHyperService::new(router.clone().layer(Extension(Peer(peer))));
        let connection = http.serve_connection_with_upgrades(TokioIo::new(Box::pin(stream)), service);
        let connection = graceful.watch(connection.into_owned());
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = connection.await {
                tracing::debug!(cause = %error, "a connection broke off");
            }
        });
    }
    drop(listener);
    let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(limits.linger_time, connections.acquire_many(all)).await;
    if tokio::time::timeout(limits.shutdown_time, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests that did not end in time are cut off");
    }
}

/// Lets hyper close the connection behind the answer once the shutdown has begun.
async fn last_of_its_connection(
    State(shutdown): State<CancellationToken>,
    mut response: Response,
) -> Response {
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS; // Which needs the header for itself.
    if shutdown.is_cancelled() && !switches {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = connections.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, peer, permit))
}
