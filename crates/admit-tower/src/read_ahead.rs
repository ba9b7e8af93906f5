//! Bodies that are read before it is known whether their requests may run.
//!
//! Whoever sends them has paid nothing yet, so that all of them together have a bound.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Rejection;
use crate::body::{self, Body, Read};

/// Room for bodies that are read ahead. Clones share it.
///
/// What counts is what has come and is still held, not what was announced: a client that sends nothing takes up nothing.
#[derive(Clone, Debug)]
pub struct ReadAhead(Arc<Semaphore>);

/// Bytes that are held: they take up their room until this is dropped.
#[derive(Debug)]
pub struct Held {
    room: Arc<Semaphore>,
    bytes: Option<OwnedSemaphorePermit>,
}

/// A body that was read to its end, and takes up its room until it is dropped.
#[derive(Debug)]
pub struct ReadBody {
    /// Its bytes.
    pub bytes: Bytes,
    /// What stood behind them.
    pub trailers: Option<HeaderMap>,
    /// Its room.
    pub held: Held,
}

impl ReadAhead {
    /// How many bytes are held at once, unless it is told otherwise: 256 MiB.
    pub const DEFAULT_MAX_BYTES: usize = 256 << 20;

    /// Room for this many bytes.
    pub fn new(max_bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(max_bytes.min(Semaphore::MAX_PERMITS))))
    }

    /// No bytes yet.
    pub fn hold(&self) -> Held {
        Held { room: Arc::clone(&self.0), bytes: None }
    }

    /// Reads a body to its end.
    ///
    /// # Errors
    /// [`Rejection`] if it is longer than `max` bytes, takes longer than `time_limit` or breaks off, or if there is no room
    /// for it: [`Rejection::Overloaded`].
    pub async fn read<B>(&self, body: B, max: usize, time_limit: Duration) -> Result<ReadBody, Rejection>
    where
        B: HttpBody<Data = Bytes>,
    {
        if body.size_hint().lower() > max as u64 {
            return Err(Rejection::BodyTooLarge { max });
        }
        let mut held = self.hold();
        let counted = Counted { body: Box::pin(body), held: &mut held };
        let (bytes, trailers) = match body::read(counted, max, time_limit).await {
            Ok(Read::Whole { bytes, trailers }) => (bytes, trailers),
            Ok(Read::TooLong(_)) => return Err(Rejection::BodyTooLarge { max }),
            Ok(Read::TooSlow(_)) => return Err(Rejection::BodyTooSlow),
            Err(NotRead::Broken) => return Err(Rejection::BodyUnreadable),
            Err(NotRead::NoRoom) => return Err(Rejection::Overloaded),
        };
        Ok(ReadBody { bytes, trailers, held })
    }
}

impl Default for ReadAhead {
    fn default() -> Self {
        Self::new(Self::DEFAULT_MAX_BYTES)
    }
}

impl Held {
    /// Holds more bytes, if there is room for them.
    #[must_use]
    pub fn add(&mut self, bytes: usize) -> bool {
        let more = u32::try_from(bytes).ok();
        let more = more.and_then(|bytes| Arc::clone(&self.room).try_acquire_many_owned(bytes).ok());
        match (&mut self.bytes, more) {
            (Some(bytes), Some(more)) => bytes.merge(more), // Of the same room, so that this cannot panic.
            (bytes @ None, Some(more)) => *bytes = Some(more),
            (_, None) => return false,
        }
        true
    }
}

impl ReadBody {
    /// The body once more, in place of the one that was read.
    pub fn into_body<B>(self) -> Body<B> {
        Body::read_ahead(self.bytes, self.trailers, self.held)
    }
}

/// A body whose bytes are held as they come.
struct Counted<'h, B> {
    body: Pin<Box<B>>,
    held: &'h mut Held,
}

enum NotRead {
    Broken,
    NoRoom,
}

impl<B: HttpBody<Data = Bytes>> HttpBody for Counted<'_, B> {
    type Data = Bytes;
    type Error = NotRead;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, NotRead>>> {
        let frame = ready!(self.body.as_mut().poll_frame(cx)).map(|frame| frame.map_err(|_| NotRead::Broken));
        if let Some(Ok(frame)) = &frame
            && !self.held.add(frame.data_ref().map_or(0, Bytes::len))
        {
            return Poll::Ready(Some(Err(NotRead::NoRoom)));
        }
        Poll::Ready(frame)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    /// Each request was bounded, and nothing was bounded over all of them: a thousand connections with a hundred streams each
    /// could fill the memory with bodies of requests that nobody had let run.
    #[tokio::test]
    async fn all_bodies_together_have_a_bound_until_they_are_dropped() {
        let ahead = ReadAhead::new(10);
        let read = async |length: usize| {
            let body = Full::new(Bytes::from(vec![0; length]));
            ahead.read(body, 8, Duration::from_secs(1)).await.map(ReadBody::into_body::<Full<Bytes>>)
        };
        assert_eq!(read(9).await.err(), Some(Rejection::BodyTooLarge { max: 8 }));
        let first = read(8).await.unwrap();
        assert_eq!(read(3).await.err(), Some(Rejection::Overloaded));
        let second = read(2).await.unwrap();
        assert_eq!(read(1).await.err(), Some(Rejection::Overloaded));
        assert!(read(0).await.is_ok());
        drop(first);
        assert!(read(8).await.is_ok());
        drop(second);
    }
}
