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

mod answers;
mod connection;
mod framing;
mod limits;
mod lingering;
mod protocol;
mod requests;
mod stream;
mod tls;
mod workers;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;

pub use answers::{Answering, Answers};
pub use limits::Limits;
pub use requests::{Encrypted, Peer};
pub use tls::{Tls, TlsError, TlsFiles, identity, roots};
pub use workers::Workers;

use connection::Shared;

/// How long the queue of the listener has to be empty before it is closed. Who is in it has connected, and may have sent a
/// request.
const QUEUE_PAUSE: Duration = Duration::from_millis(10);
/// How long nothing is accepted after the system had no more sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` is cancelled, then lets the requests that run end. A connection speaks HTTP/1.1, or HTTP/2 from
/// its first byte on, as clients of gRPC do. When this is dropped, its connections break off.
pub async fn serve(
    listener: TcpListener,
    answers: impl Into<Answers>,
    limits: Limits,
    shutdown: CancellationToken,
) {
    serve_tls(listener, answers, None, limits, shutdown, None).await;
}

/// [`serve`], encrypted if there is something to encrypt with. HTTP/2 is then what clients ask for in their handshake
/// (ALPN `h2`), else it is HTTP/1.1. A handshake has to be done within [`Limits::head_time`]; meanwhile it counts as a
/// connection and holds up no other. Connections are spread over the workers, if there are any.
pub async fn serve_tls(
    listener: TcpListener,
    answers: impl Into<Answers>,
    tls: Option<Tls>,
    limits: Limits,
    shutdown: CancellationToken,
    workers: Option<&Workers>,
) {
    let permits = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    let shared = Shared {
        answers: answers.into(),
        tls,
        limits,
        shutdown: shutdown.clone(),
        closing: CancellationToken::new(),
    };
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &permits) => accepted,
            Some(ended) = connections.join_next() => {
                tell(ended);
                continue;
            }
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok(accepted) => shared.spawn(&mut connections, workers, accepted),
            Err(error) => {
                tracing::warn!(cause = %error, "a connection was not accepted");
                // Nothing tells when there are sockets again.
                let _ = tokio::time::timeout(ACCEPT_PAUSE, shutdown.cancelled()).await;
            }
        }
    }
    let queued = async {
        while let Ok(Ok(accepted)) = tokio::time::timeout(QUEUE_PAUSE, accept(&listener, &permits)).await {
            shared.spawn(&mut connections, workers, accepted);
        }
    };
    let _ = tokio::time::timeout(shared.limits.linger_time, queued).await;
    drop(listener);
    let mut ended = async || {
        while let Some(ended) = connections.join_next().await {
            tell(ended);
        }
    };
    let _ = tokio::time::timeout(shared.limits.linger_time, ended()).await;
    shared.closing.cancel();
    if tokio::time::timeout(shared.limits.shutdown_time, ended()).await.is_err() {
        tracing::warn!("requests that did not end in time are cut off");
    }
}

fn tell(ended: Result<(), tokio::task::JoinError>) {
    match ended {
        Err(error) if error.is_panic() => tracing::error!(cause = %error, "a connection panicked"),
        Err(error) => tracing::error!(cause = %error, "a connection was cut off with its thread"),
        Ok(()) => {}
    }
}

type Accepted = (TcpStream, SocketAddr, OwnedSemaphorePermit);

impl Shared {
    fn spawn(&self, connections: &mut JoinSet<()>, workers: Option<&Workers>, accepted: Accepted) {
        let (stream, peer, permit) = accepted;
        let Some((worker, open)) = workers.and_then(Workers::least_busy) else {
            connections.spawn(self.clone().begin(stream, peer, permit));
            return;
        };
        // Its events are to come to the thread that serves it.
        let (stream, shared) = (stream.into_std(), self.clone());
        let begun = async move {
            let _open = open;
            match stream.and_then(TcpStream::from_std) {
                Ok(stream) => shared.begin(stream, peer, permit).await,
                Err(error) => tracing::warn!(cause = %error, "a connection was not accepted"),
            }
        };
        connections.spawn_on(begun, worker);
    }

    async fn begin(self, stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit) {
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.limits.stall_time));
        self.accept(Box::pin(stream), Peer(peer), permit).await;
    }
}

async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> io::Result<Accepted> {
    let permit = permits.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, peer, permit))
}
