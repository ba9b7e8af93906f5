//! What clients may take of a listener.

use std::time::Duration;

/// What clients may take of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most connections at once, 1,024 by default, those that became WebSockets among them; more wait in the
    /// listener's queue.
    pub connections: usize,
    /// The most requests at once on a connection of HTTP/2, 128 by default: more wait at the client. Some
    /// send 100 before they are told; of these the ones beyond a lower limit are refused, and may be sent again.
    pub streams: u32,
    /// How long a client may take to send a request's head, or stay silent between requests. 20 s by default. The first
    /// bytes of a connection, which tell HTTP/1.1 from HTTP/2, have as long once more. After a silence of this length a
    /// client of HTTP/2 is asked whether it is there.
    pub head_time: Duration,
    /// How long a connection of HTTP/2 stays open on which no request runs, 60 s by default: clients of gRPC expect to
    /// find theirs again. It ends by GOAWAY, so that no request breaks.
    pub idle_time: Duration,
    /// How long a client may read nothing of a response before it is cut off: its connection, or under HTTP/2 the stream
    /// that it leaves no room for 16 KiB more. 20 s by default. A client of HTTP/2 may take as long to say that it is there.
    pub stall_time: Duration,
    /// The most headers of a request, 64 by default. More are answered with 431.
    pub headers: usize,
    /// The most bytes of a request's head, 16 KiB by default and no less than 8 KiB. More are answered with 431; much more
    /// ends a connection of HTTP/2.
    pub head_bytes: usize,
    /// How long connections on which no request runs stay open once the shutdown begins, 500 ms by default: a request
    /// may be on its way, or wait to be read. Each answer then tells its client that it is the connection's last. A client
    /// of HTTP/2 is told at once, by GOAWAY, which loses no request.
    pub linger_time: Duration,
    /// How long requests may go on after that, 35 s by default.
    pub shutdown_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1_024,
            streams: 128,
            head_time: Duration::from_secs(20),
            idle_time: Duration::from_secs(60),
            stall_time: Duration::from_secs(20),
            headers: 64,
            head_bytes: 16 << 10,
            linger_time: Duration::from_millis(500),
            shutdown_time: Duration::from_secs(35),
        }
    }
}
