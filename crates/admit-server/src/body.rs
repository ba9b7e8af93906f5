//! Reads the bodies of requests, within bounds.

use std::future::{Pending, pending};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use admit_tower::{Held, ReadAhead, ReadBody, Rejection};
use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Timeout, timeout};
use tonic::Status;

/// How long a body may take to arrive.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The whole body.
///
/// # Errors
/// [`Rejection`] if it is longer than `max` bytes, too slow, or breaks off, or if there is no room for it.
pub(crate) async fn whole(ahead: &ReadAhead, body: Body, max: usize) -> Result<ReadBody, Rejection> {
    ahead.read(body, max, TIME_LIMIT).await
}

/// The body of a call, for a service that reads it without a bound of its own: it fails where it is longer than `max` bytes, or
/// does not end in time, or where there is no room for it.
pub(crate) fn bounded(ahead: &ReadAhead, body: Body, max: usize) -> Body {
    Body::new(Bounded { body, held: ahead.hold(), left: max, ends: None })
}

/// What the caller of a call is told whose body did not end in time.
pub(crate) fn too_slow() -> Status {
    Status::deadline_exceeded("the body did not arrive in time")
}

/// Whose body is longer than it may be.
pub(crate) fn too_long() -> Status {
    Status::out_of_range("the body is too long")
}

/// For whose body there is no room.
pub(crate) fn no_room() -> Status {
    Status::unavailable("there is no room for the body")
}

struct Bounded {
    body: Body,
    held: Held,
    left: usize,
    /// Counts from when it is first waited for.
    ends: Option<Pin<Box<Timeout<Pending<()>>>>>,
}

impl HttpBody for Bounded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let failed = |status: Status| Poll::Ready(Some(Err(axum::Error::new(status))));
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Pending => {
                let ends = self.ends.get_or_insert_with(|| Box::pin(timeout(TIME_LIMIT, pending())));
                if ends.as_mut().poll(cx).is_ready() {
                    return failed(too_slow());
                }
            }
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                match self.left.checked_sub(length) {
                    Some(left) => self.left = left,
                    None => return failed(too_long()),
                }
                if !self.held.add(length) {
                    return failed(no_room());
                }
            }
            _ => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
