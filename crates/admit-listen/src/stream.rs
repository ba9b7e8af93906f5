//! The streams of HTTP/2: how many run on a connection, and an end for those that nobody reads.
//!
//! A client that grants a stream no more room keeps it, with all that the answer holds, for ever: the connection itself is
//! not blocked, so that no limit on the socket notices. hyper takes the next frame of a body only when there is room for
//! it. So a stream whose body has given a frame and is not asked for another waits for its reader, and is dropped after a
//! while, which resets it.

use std::cell::Cell;
use std::future::{Future, Pending, pending};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body::{Body as _, Frame, SizeHint};
use hyper::rt::Executor;
use tokio::sync::watch;
use tokio::time::{Timeout, timeout};

tokio::task_local! {
    /// How the body of the stream stands that is polled.
    static TURN: Cell<Turn>;
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// How often the body was asked for a frame.
    asked: u64,
    /// It gave one.
    gave: bool,
}

/// Runs the streams of a connection, each until its reader has stalled for too long.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    pub(crate) stall_time: Duration,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let stall_time = self.stall_time;
        tokio::spawn(
            TURN.scope(Cell::default(), Stalling { stream: Box::pin(stream), stall_time, wait: None }),
        );
    }
}

/// A stream, and since when its reader is waited for.
struct Stalling<F> {
    stream: Pin<Box<F>>,
    stall_time: Duration,
    wait: Option<Wait>,
}

/// For the frame after the one of this number.
type Wait = (u64, Pin<Box<Timeout<Pending<()>>>>);

impl<F: Future<Output = ()>> Future for Stalling<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let turn = TURN.try_with(Cell::get).unwrap_or_default(); // It is there: the stream runs in its scope.
        if !turn.gave {
            self.wait = None;
            return Poll::Pending;
        }
        let stall_time = self.stall_time;
        let wait = self.wait.take_if(|(asked, _)| *asked == turn.asked);
        let (_, wait) =
            self.wait.insert(wait.unwrap_or_else(|| (turn.asked, Box::pin(timeout(stall_time, pending())))));
        if wait.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        tracing::debug!("a stream that is not read is reset");
        Poll::Ready(())
    }
}

/// A request that runs. It has ended when its answer has been given whole. Who waits is told only of the first that begins
/// and the last that ends: it is the connection that waits, and each time it is told it looks at all of its streams.
#[derive(Debug)]
pub(crate) struct Running(watch::Sender<usize>);

impl Running {
    pub(crate) fn start(running: &watch::Sender<usize>) -> Self {
        running.send_if_modified(|running| {
            *running += 1;
            *running == 1
        });
        Self(running.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_if_modified(|running| {
            *running = running.saturating_sub(1);
            *running == 0
        });
    }
}

/// Returns when no request has run for a time.
pub(crate) async fn idle(mut running: watch::Receiver<usize>, time: Duration) {
    loop {
        if running.wait_for(|running| *running == 0).await.is_err() {
            return; // Nobody is there to start one.
        }
        match timeout(time, running.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

/// How much of a body a stream is given at once, in bytes: who reads less than this in the time has stalled. It is not
/// asked for more before there is room for what it has, however much that is.
const PIECE: usize = 16 << 10;

/// The body of an answer, which tells its stream whose turn it is.
pub(crate) struct Answer {
    body: Body,
    /// What was not given yet of the last frame.
    rest: Bytes,
    _running: Option<Running>,
}

impl Answer {
    pub(crate) fn new(body: Body, running: Option<Running>) -> Self {
        Self { body, rest: Bytes::new(), _running: running }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)?).map(Frame::into_data) {
                Some(Ok(data)) => self.rest = data,
                Some(Err(trailers)) => return Poll::Ready(Some(Ok(trailers))),
                None => return Poll::Ready(None),
            }
        }
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = self.poll_piece(cx);
        // A body that is polled elsewhere has no stream that waits.
        let _ = TURN.try_with(|turn| {
            let asked = turn.get().asked.wrapping_add(1);
            turn.set(Turn { asked, gave: frame.is_ready() });
        });
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    /// Asked for before the first frame.
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
