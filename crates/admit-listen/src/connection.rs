//! One connection, from its first byte to its last.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::framing::Guarded;
use crate::protocol::{Protocol, detect};
use crate::requests::{Connection, Requests};
use crate::stream::{Streams, idle};
use crate::{Answers, Encrypted, Limits, Peer, Tls};

/// hyper takes no smaller buffer.
const MIN_HEAD_BYTES: usize = 8 << 10;
/// The largest frame of HTTP/2 that is taken, in bytes: the least that the protocol allows. Larger ones save nothing.
const FRAME_BYTES: u32 = 16 << 10;
/// What a client may send ahead on a stream of HTTP/2, in bytes.
const STREAM_WINDOW: u32 = 256 << 10;
/// What it may send ahead on all of a connection: more than on one, so that one that is not read holds up no other.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// How much of an answer is held for a client of HTTP/2 that has no room for it, in bytes for each stream.
const SEND_BUFFER: usize = 64 << 10;
/// How many streams a client may reset before they are looked at; more end the connection (CVE-2023-44487).
const PENDING_RESETS: usize = 20;
/// How many streams may end by a mistake of the client; more end the connection (CVE-2025-8671).
const FAULTY_STREAMS: usize = 128;

/// What the connections of a listener share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) answers: Answers,
    pub(crate) tls: Option<Tls>,
    pub(crate) limits: Limits,
    /// The listener accepts nothing more.
    pub(crate) shutdown: CancellationToken,
    /// Connections on which no request runs are to end.
    pub(crate) closing: CancellationToken,
}

impl Shared {
    /// Encrypts the connection if the listener does, and serves it.
    pub(crate) async fn accept<S>(self, stream: S, peer: Peer, permit: OwnedSemaphorePermit)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(tls) = &self.tls else { return self.serve(stream, peer, None, permit).await };
        let handshake = TlsAcceptor::from(tls.current()).accept(stream);
        if let Some(stream) = self.soon(handshake).await {
            self.serve(stream, peer, Some(Encrypted), permit).await;
        }
    }

    /// What has to happen before the first request: within the time for a head, and unless the listener closes.
    async fn soon<T>(&self, first: impl Future<Output = io::Result<T>>) -> Option<T> {
        let first = tokio::select! {
            first = timeout(self.limits.head_time, first) => first,
            () = self.closing.cancelled() => return None,
        };
        match first {
            Ok(Ok(first)) => return Some(first),
            Ok(Err(error)) => tracing::debug!(cause = %error, "a connection ended before a request"),
            Err(_) => tracing::debug!("a connection is closed on which no request began"),
        }
        None
    }

    async fn serve<S>(self, stream: S, peer: Peer, encrypted: Option<Encrypted>, permit: OwnedSemaphorePermit)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some((protocol, stream)) = self.soon(detect(stream, permit)).await else { return };
        // A token of the connection's own: the listener's has a lock, which all of its connections would wait for.
        let shutdown = self.shutdown.child_token();
        let of = Connection { peer, encrypted, protocol, headers: self.limits.headers, shutdown };
        let requests = Requests::new(self.answers, of);
        match protocol {
            Protocol::Http1 => {
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new())
                    .header_read_timeout(self.limits.head_time)
                    .max_headers(self.limits.headers)
                    .max_buf_size(self.limits.head_bytes.max(MIN_HEAD_BYTES));
                let stream = TokioIo::new(Guarded::new(stream, requests.switched()));
                let connection = http.serve_connection(stream, requests).with_upgrades();
                // The time limit on heads ends idle connections as well.
                drive(
                    connection,
                    http1::UpgradeableConnection::graceful_shutdown,
                    self.closing.child_token(),
                    std::future::pending,
                )
                .await;
            }
            Protocol::Http2 => {
                let (shutdown, runs) = (self.shutdown.child_token(), requests.running());
                let connection = http2(&self.limits).serve_connection(TokioIo::new(stream), requests);
                let idle = || idle(runs.clone(), self.limits.idle_time);
                drive(connection, http2::Connection::graceful_shutdown, shutdown, idle).await;
            }
        }
    }
}

fn http2(limits: &Limits) -> http2::Builder<Streams> {
    let mut http = http2::Builder::new(Streams { stall_time: limits.stall_time });
    let head_bytes = limits.head_bytes.max(MIN_HEAD_BYTES);
    http.timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(head_bytes).unwrap_or(u32::MAX))
        .max_frame_size(FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(FAULTY_STREAMS)
        .keep_alive_interval(limits.head_time)
        .keep_alive_timeout(limits.stall_time);
    http
}

/// Serves the connection until it ends. It is asked to `finish` when `end` says so, or when it is idle; if it then is idle
/// once more it is cut off, as its client does not answer.
async fn drive<C, I>(
    connection: C,
    finish: impl Fn(Pin<&mut C>),
    end: CancellationToken,
    idle: impl Fn() -> I,
) where
    C: Future<Output = hyper::Result<()>>,
    I: Future<Output = ()>,
{
    let mut connection = pin!(connection);
    let mut is_ending = false;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(cause = %error, "a connection broke off");
                }
                return;
            }
            () = end.cancelled(), if !is_ending => {}
            () = idle() => if is_ending {
                return tracing::debug!("an idle connection whose client does not answer is cut off");
            }
        }
        is_ending = true;
        finish(connection.as_mut());
    }
}
