//! The body of requests and responses that pass the layers.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::timeout;

use crate::read_ahead::Held;

/// A body that comes from the wrapped side, was made by a layer, or was read ahead by one: frames in memory first,
/// then the rest of the wrapped body, if there is any.
pub struct Body<B> {
    read_ahead: std::collections::VecDeque<Bytes>,
    rest: Option<Pin<Box<B>>>,
    trailers: Option<HeaderMap>,
    /// The room that it takes up.
    _held: Option<Held>,
}

impl<B> Body<B> {
    /// The wrapped side's own body.
    pub fn wrap(inner: B) -> Self {
        Self { rest: Some(Box::pin(inner)), ..Self::default() }
    }

    /// A body that was read to its end.
    pub(crate) fn read(read: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self { trailers, ..Self::from(read) }
    }

    /// The same, which takes up room.
    pub(crate) fn read_ahead(read: Bytes, trailers: Option<HeaderMap>, held: Held) -> Self {
        Self { _held: Some(held), ..Self::read(read, trailers) }
    }
}

impl<B> From<Bytes> for Body<B> {
    fn from(bytes: Bytes) -> Self {
        let read_ahead = if bytes.is_empty() { Default::default() } else { [bytes].into() };
        Self { read_ahead, rest: None, trailers: None, _held: None }
    }
}

impl<B> Default for Body<B> {
    fn default() -> Self {
        Self::from(Bytes::new())
    }
}

impl<B: HttpBody<Data = Bytes>> HttpBody for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(bytes) = self.read_ahead.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if let Some(rest) = &mut self.rest {
            match ready!(rest.as_mut().poll_frame(cx)) {
                Some(frame) => return Poll::Ready(Some(frame)),
                None => self.rest = None,
            }
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.read_ahead.is_empty()
            && self.trailers.is_none()
            && self.rest.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read_ahead.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), HttpBody::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(read.saturating_add(rest.lower()));
        if let Some(upper) = rest.upper() {
            hint.set_upper(read.saturating_add(upper));
        }
        hint
    }
}

impl<B> fmt::Debug for Body<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read_ahead: usize = self.read_ahead.iter().map(Bytes::len).sum();
        f.debug_struct("Body").field("read_ahead", &read_ahead).field("rest", &self.rest.is_some()).finish()
    }
}

/// What reading a body within bounds came to.
pub(crate) enum Read<B> {
    /// All of it.
    Whole { bytes: Bytes, trailers: Option<HeaderMap> },
    /// It is longer than may be; this is what was read, and the rest.
    TooLong(Body<B>),
    /// It did not end in time; this is what was read, and the rest.
    TooSlow(Body<B>),
}

/// Reads a body as far as `max` bytes, for `time_limit` at most.
pub(crate) async fn read<B: HttpBody<Data = Bytes>>(
    body: B,
    max: usize,
    time_limit: Duration,
) -> Result<Read<B>, B::Error> {
    let mut rest = Box::pin(body);
    let (mut read, mut trailers) = (Vec::new(), None);
    let reading = read_into(&mut read, &mut trailers, rest.as_mut(), max);
    let ended = match timeout(time_limit, reading).await {
        Ok(fits) => Ok(fits?),
        Err(elapsed) => Err(elapsed),
    };
    let partly = |read: Vec<Bytes>, trailers| Body {
        read_ahead: read.into(),
        rest: Some(rest),
        trailers,
        _held: None,
    };
    Ok(match ended {
        Ok(true) => {
            let bytes = if read.len() == 1 { read.remove(0) } else { read.concat().into() };
            Read::Whole { bytes, trailers }
        }
        Ok(false) => Read::TooLong(partly(read, trailers)),
        Err(_) => Read::TooSlow(partly(read, trailers)),
    })
}

/// Reads on until the end, or until there is more than `max` bytes: false then.
async fn read_into<B: HttpBody<Data = Bytes>>(
    read: &mut Vec<Bytes>,
    trailers: &mut Option<HeaderMap>,
    mut body: Pin<&mut B>,
    max: usize,
) -> Result<bool, B::Error> {
    let mut length = 0_usize;
    while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        match frame?.into_data() {
            Ok(data) => {
                length = length.saturating_add(data.len());
                if !data.is_empty() {
                    read.push(data); // Empty frames would grow the list without counting against the bound.
                }
                if length > max {
                    return Ok(false);
                }
            }
            Err(frame) => *trailers = frame.into_trailers().ok(),
        }
    }
    Ok(true)
}
