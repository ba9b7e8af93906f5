//! Connections of HTTP/1.1 in the clear to one upstream, as one worker has them.
//!
//! What most upstreams are. The client of hyper's companion does the same and more, for which each request pays: it makes a task
//! to watch for the end of each response, which here the response's body tells.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use admit::{Clock, MonotonicClock, Timestamp};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::client::legacy::connect::HttpConnector;
use tower::ServiceExt;

use super::body::Upload;
use super::target::{InTime, POOL_SIZE, POOL_TIME, READ_AHEAD, Unanswered};

/// Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connector: InTime<HttpConnector>,
    upstream: Uri,
    clock: MonotonicClock,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// The one that was used last is at the end, and is used first.
    connections: Vec<(Timestamp, SendRequest<Upload>)>,
    /// A task closes those whose time is over.
    is_swept: bool,
}

/// A connection whose response is read. Dropped, it is closed.
#[derive(Debug)]
pub(super) struct Lease {
    pool: Pool,
    connection: SendRequest<Upload>,
}

impl Pool {
    /// Without any connection yet.
    pub(super) fn new(connector: InTime<HttpConnector>, upstream: Uri) -> Self {
        let (clock, idle) = (MonotonicClock::start(), Mutex::default());
        Self(Arc::new(Shared { connector, upstream, clock, idle }))
    }

    /// Sends a request, whose head has all that an upstream has to see. Where a connection had been closed meanwhile and took
    /// nothing of the request, another one gets it.
    pub(super) async fn send(
        &self,
        mut request: Request<Upload>,
    ) -> Result<(Response<Incoming>, Lease), Unanswered> {
        loop {
            let (mut connection, is_used) = match self.0.idle() {
                Some(connection) => (connection, true),
                None => (self.0.connect().await?, false),
            };
            let mut failed = match connection.try_send_request(request).await {
                Ok(response) => return Ok((response, Lease { pool: self.clone(), connection })),
                Err(failed) => failed,
            };
            match failed.take_message() {
                Some(unsent) if is_used => request = unsent,
                _ => return Err(Unanswered::BrokeOff(failed.into_error())),
            }
        }
    }
}

impl Lease {
    /// Has others use the connection, whose response has ended, and which takes no more of its request.
    pub(super) fn give_back(self) {
        let Self { pool: Pool(shared), connection } = self;
        if connection.is_closed() {
            return;
        }
        let now = shared.clock.now();
        let mut idle = shared.lock();
        if idle.connections.len() >= POOL_SIZE {
            return;
        }
        idle.connections.push((now, connection));
        if !std::mem::replace(&mut idle.is_swept, true) {
            drop(idle);
            tokio::spawn(sweep(Arc::downgrade(&shared)));
        }
    }
}

impl Shared {
    fn idle(&self) -> Option<SendRequest<Upload>> {
        let oldest = self.oldest();
        let mut idle = self.lock();
        for i in (0..idle.connections.len()).rev() {
            let (since, connection) = &idle.connections[i];
            if *since < oldest {
                return None; // As are all before it.
            }
            if connection.is_closed() {
                idle.connections.remove(i); // Of an upstream that closes each there would be many.
            } else if connection.is_ready() {
                return Some(idle.connections.remove(i).1);
            } // Else its task has still to see that its response has ended.
        }
        None
    }

    /// Since when a connection may be unused.
    fn oldest(&self) -> Timestamp {
        self.clock.now().saturating_sub(POOL_TIME)
    }

    async fn connect(&self) -> Result<SendRequest<Upload>, Unanswered> {
        let connecting = self.connector.clone().oneshot(self.upstream.clone());
        let stream = connecting.await.map_err(Unanswered::Connect)?;
        let handshake = Builder::new().max_buf_size(READ_AHEAD).handshake(stream).await;
        let (connection, driver) = handshake.map_err(Unanswered::BrokeOff)?;
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(cause = %error, "a connection to an upstream broke off");
            }
        });
        Ok(connection)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes connections that are unused for too long, until there are none.
async fn sweep(pool: Weak<Shared>) {
    let mut ticks = tokio::time::interval(SWEEP);
    loop {
        ticks.tick().await;
        let Some(shared) = pool.upgrade() else { return };
        let oldest = shared.oldest();
        let mut idle = shared.lock();
        let (kept, over) = std::mem::take(&mut idle.connections)
            .into_iter()
            .partition(|(since, connection)| *since >= oldest && !connection.is_closed());
        idle.connections = kept;
        idle.is_swept = !idle.connections.is_empty();
        let is_over = !idle.is_swept;
        drop(idle);
        drop::<Vec<_>>(over); // Not while it is locked: tasks wake.
        if is_over {
            return;
        }
    }
}

/// How often.
const SWEEP: Duration = Duration::from_secs(5);
