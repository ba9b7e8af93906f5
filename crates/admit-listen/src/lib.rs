//! The listener: connections and their limits, and an end without broken requests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// The most connections at once; more wait in the listener's queue.
const MAX_CONNECTIONS: usize = 1_024;
/// How long a client may take to send a request's head, or stay silent between requests.
const HEAD_TIME_LIMIT: Duration = Duration::from_secs(20);
/// The most headers of a request.
const MAX_HEADERS: usize = 64;
/// The most bytes of a request's head.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// How long requests may go on after the shutdown begins.
const SHUTDOWN_TIME_LIMIT: Duration = Duration::from_secs(35);
/// How long nothing is accepted after the system had no more sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` is cancelled, then lets the requests that run end.
pub async fn serve(listener: TcpListener, router: Router, shutdown: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &connections) => accepted,
            () = shutdown.cancelled() => break,
        };
        let (stream, permit) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(cause = %error, "a connection was not accepted");
                // Nothing tells when there are sockets again.
                let _ = tokio::time::timeout(ACCEPT_PAUSE, shutdown.cancelled()).await;
                continue;
            }
        };
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME_LIMIT)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD_BYTES);
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = connection.await {
                tracing::debug!(cause = %error, "a connection broke off");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(SHUTDOWN_TIME_LIMIT, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests that did not end in time are cut off");
    }
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> io::Result<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = connections.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, permit))
}
