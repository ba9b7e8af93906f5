//! The body of requests and responses that pass the layers.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::timeout;

use crate::read_ahead::Held;

pin_project! {
    /// A body that comes from the wrapped side, was made by a layer, or was read ahead by one: frames in memory first,
    /// then the rest of the wrapped body, if there is any.
    pub struct Body<B> {
        ahead: Option<Box<Ahead>>,
        #[pin]
        rest: Rest<B>,
    }
}

/// What a layer made or read. Most bodies just pass, and have none.
#[derive(Default)]
struct Ahead {
    frames: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    /// The room that it takes up.
    _held: Option<Held>,
}

pin_project! {
    #[project = RestProjection]
    enum Rest<B> {
        None,
        Wrapped { #[pin] body: B },
        /// Of which something was read.
        Begun { body: Pin<Box<B>> },
    }
}

impl<B: HttpBody> Rest<B> {
    fn body(&self) -> Option<&B> {
        match self {
            Self::None => None,
            Self::Wrapped { body } => Some(body),
            Self::Begun { body } => Some(body),
        }
    }
}

impl<B> Body<B> {
    /// The wrapped side's own body.
    pub fn wrap(inner: B) -> Self {
        Self { ahead: None, rest: Rest::Wrapped { body: inner } }
    }

    /// A body that was read to its end.
    pub(crate) fn read(read: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self::of(read, trailers, None)
    }

    /// The same, which takes up room.
    pub(crate) fn read_ahead(read: Bytes, trailers: Option<HeaderMap>, held: Held) -> Self {
        Self::of(read, trailers, Some(held))
    }

    fn of(read: Bytes, trailers: Option<HeaderMap>, held: Option<Held>) -> Self {
        let frames = if read.is_empty() { VecDeque::new() } else { [read].into() };
        Self { ahead: Some(Box::new(Ahead { frames, trailers, _held: held })), rest: Rest::None }
    }
}

impl<B> From<Bytes> for Body<B> {
    fn from(bytes: Bytes) -> Self {
        Self::of(bytes, None, None)
    }
}

impl<B> Default for Body<B> {
    fn default() -> Self {
        Self { ahead: None, rest: Rest::None }
    }
}

impl<B: HttpBody<Data = Bytes>> HttpBody for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut this = self.project();
        if let Some(bytes) = this.ahead.as_mut().and_then(|ahead| ahead.frames.pop_front()) {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let frame = match this.rest.as_mut().project() {
            RestProjection::None => None,
            RestProjection::Wrapped { body } => ready!(body.poll_frame(cx)),
            RestProjection::Begun { body } => ready!(body.as_mut().poll_frame(cx)),
        };
        if frame.is_some() {
            return Poll::Ready(frame);
        }
        this.rest.set(Rest::None);
        let trailers = this.ahead.as_mut().and_then(|ahead| ahead.trailers.take());
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.as_ref().is_none_or(|ahead| ahead.frames.is_empty() && ahead.trailers.is_none())
            && self.rest.body().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.body().map_or(SizeHint::with_exact(0), HttpBody::size_hint);
        let Some(ahead) = &self.ahead else { return rest };
        let read = ahead.frames.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
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
        let frames = self.ahead.iter().flat_map(|ahead| &ahead.frames);
        let (read_ahead, rest) = (frames.map(Bytes::len).sum::<usize>(), !matches!(self.rest, Rest::None));
        f.debug_struct("Body").field("read_ahead", &read_ahead).field("rest", &rest).finish()
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
        ahead: Some(Box::new(Ahead { frames: read.into(), trailers, _held: None })),
        rest: Rest::Begun { body: rest },
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
