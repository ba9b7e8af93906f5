//! Reads the bodies of requests, within bounds.

use std::future::{Pending, pending};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use admit_tower::Rejection;
use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, Collected, LengthLimitError, Limited};
use tokio::time::{Timeout, timeout};
use tonic::Status;

/// How long a body may take to arrive.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The bytes of the whole body.
///
/// # Errors
/// As [`collected`].
pub(crate) async fn whole(body: Body, max: usize) -> Result<Bytes, Rejection> {
    collected(body, max).await.map(Collected::to_bytes)
}

/// The whole body.
///
/// # Errors
/// [`Rejection`] if it is longer than `max` bytes, too slow, or breaks off.
pub(crate) async fn collected(body: Body, max: usize) -> Result<Collected<Bytes>, Rejection> {
    let too_large = || Rejection::BodyTooLarge { max };
    if body.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    match timeout(TIME_LIMIT, Limited::new(body, max).collect()).await {
        Ok(Ok(whole)) => Ok(whole),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Rejection::BodyUnreadable),
        Err(_) => Err(Rejection::BodyTooSlow),
    }
}

/// The body of a call, for a service that reads it without a bound of its own: it fails where it is longer than `max` bytes, or
/// does not end in time.
pub(crate) fn bounded(body: Body, max: usize) -> Body {
    Body::new(Bounded { body, left: max, ends: Box::pin(timeout(TIME_LIMIT, pending())) })
}

struct Bounded {
    body: Body,
    left: usize,
    /// Counts from when it is first asked.
    ends: Pin<Box<Timeout<Pending<()>>>>,
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
            Poll::Pending if self.ends.as_mut().poll(cx).is_ready() => {
                return failed(Status::deadline_exceeded("the body did not arrive in time"));
            }
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                match self.left.checked_sub(length) {
                    Some(left) => self.left = left,
                    None => return failed(Status::out_of_range("the body is too long")),
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
