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
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt;

use super::body::Upload;
use super::target::{InTime, POOL_SIZE, POOL_TIME, READ_AHEAD, Unanswered};

/// How often connections are looked at whose time may be over: they are open for that much longer at most.
const SWEEP: Duration = Duration::from_secs(5);

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
    connections: Vec<(Timestamp, Connection)>,
    /// A task closes those whose time is over.
    is_swept: bool,
}

/// A connection. Dropped, it is closed at once, whatever it still has to send: nobody waits for that.
#[derive(Debug)]
struct Connection {
    requests: SendRequest<Upload>,
    _driver: AbortOnDropHandle<()>,
}

/// A connection whose response is read. Dropped, it is closed.
#[derive(Debug)]
pub(super) struct Borrowed {
    pool: Pool,
    connection: Connection,
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
    ) -> Result<(Response<Incoming>, Borrowed), Unanswered> {
        loop {
            let (mut connection, is_used) = match self.0.idle() {
                Some(connection) => (connection, true),
                None => (self.0.connect().await?, false),
            };
            let mut failed = match connection.requests.try_send_request(request).await {
                Ok(response) => return Ok((response, Borrowed { pool: self.clone(), connection })),
                Err(failed) => failed,
            };
            match failed.take_message() {
                Some(unsent) if is_used => request = unsent,
                // It was closed before it could take anything: as good as none.
                Some(_) => return Err(Unanswered::Connect(failed.into_error().into())),
                None => return Err(Unanswered::BrokeOff(failed.into_error())),
            }
        }
    }
}

impl Borrowed {
    /// Has others use the connection, whose response has ended, and which takes no more of its request.
    pub(super) fn give_back(self) {
        let Self { pool: Pool(shared), connection } = self;
        if connection.requests.is_closed() {
            return;
        }
        let now = shared.clock.now();
        let mut idle = shared.lock();
        if idle.connections.len() >= POOL_SIZE {
            return;
        }
        let sweeper = match idle.is_swept {
            true => None,
            false => match Handle::try_current() {
                Ok(runtime) => Some(runtime),
                Err(_) => return, // Nobody would ever close it.
            },
        };
        idle.connections.push((now, connection));
        idle.is_swept = true;
        drop(idle);
        if let Some(runtime) = sweeper {
            runtime.spawn(sweep(Swept(Arc::downgrade(&shared))));
        }
    }
}

impl Shared {
    fn idle(&self) -> Option<Connection> {
        let oldest = self.oldest();
        let mut idle = self.lock();
        for i in (0..idle.connections.len()).rev() {
            let (since, connection) = &idle.connections[i];
            if *since < oldest {
                return None; // As are all before it.
            }
            if connection.requests.is_closed() {
                idle.connections.remove(i); // Of an upstream that closes each there would be many.
            } else if connection.requests.is_ready() {
                return Some(idle.connections.remove(i).1);
            } // Else its task has still to see that its response has ended.
        }
        None
    }

    /// Since when a connection may be unused.
    fn oldest(&self) -> Timestamp {
        self.clock.now().saturating_sub(POOL_TIME)
    }

    async fn connect(&self) -> Result<Connection, Unanswered> {
        let connecting = self.connector.clone().oneshot(self.upstream.clone());
        let stream = connecting.await.map_err(Unanswered::Connect)?;
        let handshake = Builder::new().max_buf_size(READ_AHEAD).handshake(stream).await;
        let (requests, driver) = handshake.map_err(Unanswered::BrokeOff)?;
        let driver = tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(cause = %error, "a connection to an upstream broke off");
            }
        });
        Ok(Connection { requests, _driver: AbortOnDropHandle::new(driver) })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pool of a sweep. Where that ends before its time, with its runtime, another one may begin.
struct Swept(Weak<Shared>);

impl Drop for Swept {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.lock().is_swept = false;
        }
    }
}

/// Closes connections that are unused for too long, until there are none.
async fn sweep(mut pool: Swept) {
    let mut ticks = tokio::time::interval(SWEEP);
    loop {
        ticks.tick().await;
        let Some(shared) = pool.0.upgrade() else { return };
        let oldest = shared.oldest();
        let mut idle = shared.lock();
        let (kept, over) = std::mem::take(&mut idle.connections)
            .into_iter()
            .partition(|(since, connection)| *since >= oldest && !connection.requests.is_closed());
        idle.connections = kept;
        idle.is_swept = !idle.connections.is_empty();
        let is_over = !idle.is_swept;
        drop(idle);
        drop::<Vec<_>>(over); // Not while it is locked: tasks wake.
        if is_over {
            pool.0 = Weak::new(); // It has said so itself, and another one may have begun.
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc;

    use axum::body::Body;
    use http_body_util::BodyExt;
    use tokio::runtime::{Builder, Runtime};

    use super::super::reserved::Reserved;
    use super::*;

    fn pool(listener: &TcpListener) -> Pool {
        let url = format!("http://{}/", listener.local_addr().unwrap());
        Pool::new(InTime::new(HttpConnector::new(), Duration::from_secs(5)), url.parse().unwrap())
    }

    fn request() -> Request<Upload> {
        let (clock, reserved) = (MonotonicClock::start(), Arc::new(Reserved::ALWAYS));
        let body = Upload::new(Body::empty(), clock, Duration::from_secs(60), reserved);
        Request::builder().uri("/").header("host", "a").body(body).unwrap()
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// Of an upstream, a balancer without a server for one, that accepts connections and closes them unread. Its request was
    /// unsent, and was 502 though there was another upstream.
    #[test]
    fn a_connection_that_is_closed_before_it_takes_anything_is_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pool = pool(&listener);
        let (closed, is_closed) = mpsc::channel();
        let closing = std::thread::spawn(move || {
            drop(listener.accept().unwrap());
            closed.send(()).unwrap();
        });
        // What connects has this thread again only when the connection is closed already.
        let wait = async { is_closed.recv().unwrap() };
        let (sent, ()) = runtime().block_on(async { tokio::join!(pool.send(request()), wait) });
        assert!(matches!(sent.unwrap_err(), Unanswered::Connect(_)));
        closing.join().unwrap();
    }

    /// The runtime whose connection was the first to be unused was to close all that came later, also once it was gone.
    #[test]
    fn unused_connections_are_closed_also_when_the_runtime_of_the_first_has_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pool = pool(&listener);
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut piece = [0; 1024];
                let read = stream.read(&mut piece).unwrap();
                head.extend_from_slice(&piece[..read]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
            let _ = stream.read(&mut [0]); // Until it is closed.
        });
        runtime().block_on(async {
            let (response, borrowed) = pool.send(request()).await.unwrap();
            response.into_body().collect().await.unwrap();
            borrowed.give_back();
            assert!(pool.0.lock().is_swept);
        });
        assert!(!pool.0.lock().is_swept);
        answering.join().unwrap();
    }
}
