//! The bodies of an exchange, and the time that may pass without any of them.

use std::error::Error;
use std::future::{Pending, pending};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use admit::{Clock, MonotonicClock, Timestamp};
use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Timeout, timeout};

use super::failure::Failure;
use super::pool::Borrowed;
use super::reserved::Reserved;

type BoxError = Box<dyn Error + Send + Sync>;
/// What went wrong, and from what.
type Failed = (Failure, Option<hyper::Error>);

/// The timer of an exchange. It is made when something is waited for, and not made anew when the wait may be longer.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<Pin<Box<Timeout<Pending<()>>>>>);

impl Alarm {
    /// Tells what is over, by a function that tells how long is left, which never becomes less.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        left: impl Fn() -> Result<Duration, Failure>,
    ) -> Poll<Failure> {
        loop {
            if let Some(timer) = &mut self.0 {
                ready!(timer.as_mut().poll(cx)).ok();
            }
            match left() {
                Ok(left) => self.0 = Some(Box::pin(timeout(left, pending()))),
                Err(failure) => return Poll::Ready(failure),
            }
        }
    }
}

/// What is left of a time, or that it is over.
pub(super) fn left(time: Duration, passed: Duration, over: Failure) -> Result<Duration, Failure> {
    time.checked_sub(passed).filter(|left| !left.is_zero()).ok_or(over)
}

/// What the request's body waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The upstream has to take it, or has all of it.
    Upstream,
    Client,
    /// It has failed.
    Failed(Failure),
}

fn passed_on(mut frame: Frame<Bytes>, reserved: &Reserved) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        reserved.drop_from_trailers(trailers);
    }
    frame
}

/// Whether nothing comes behind this. Who passes a body on asks for nothing behind its trailers.
fn is_last<E>(frame: Option<&Result<Frame<Bytes>, E>>) -> bool {
    frame.is_none_or(|frame| frame.as_ref().is_ok_and(Frame::is_trailers))
}

/// The body of a request. Clones share it, so that it can be sent elsewhere as long as nothing of it was read.
#[derive(Clone, Debug)]
pub(super) struct Upload(Arc<Mutex<Sent>>);

#[derive(Debug)]
struct Sent {
    /// Nothing once nobody waits for it.
    body: Option<Body>,
    /// Something of it was given.
    has_begun: bool,
    /// All of it was.
    has_ended: bool,
    phase: Phase,
    /// Since when it is in this phase, or something passed in whichever direction.
    since: Timestamp,
    clock: MonotonicClock,
    idle: Duration,
    alarm: Alarm,
    /// Who waits for more of it.
    waker: Option<Waker>,
    reserved: Arc<Reserved>,
}

impl Upload {
    pub(super) fn new(body: Body, clock: MonotonicClock, idle: Duration, reserved: Arc<Reserved>) -> Self {
        Self(Arc::new(Mutex::new(Sent {
            body: Some(body),
            has_begun: false,
            has_ended: false,
            phase: Phase::Upstream,
            since: clock.now(),
            clock,
            idle,
            alarm: Alarm::default(),
            waker: None,
            reserved,
        })))
    }

    /// Whether all of it can still be sent.
    pub(super) fn is_whole(&self) -> bool {
        self.with(|sent| !sent.has_begun)
    }

    /// What it waits for, and since when that is so or something passed.
    pub(super) fn stands(&self) -> (Phase, Timestamp) {
        self.with(|sent| (sent.phase, sent.since))
    }

    /// From now on another upstream is waited for, or something has passed in the other direction.
    pub(super) fn passed(&self, now: Timestamp) {
        self.with(|sent| sent.since = now);
    }

    /// Whether the upstream has all of it.
    fn is_sent(&self) -> bool {
        self.with(|sent| sent.has_ended || sent.body.as_ref().is_some_and(HttpBody::is_end_stream))
    }

    /// Ends it, as nobody waits for what is left of it. The client is read no further, and who sends it on is told.
    pub(super) fn cut(&self) {
        let (rest, waker) =
            self.with(|sent| (sent.body.take_if(|body| !body.is_end_stream()), sent.waker.take()));
        drop(rest); // Not while it is locked: others' code runs.
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Sent) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Sent {
    fn enter(&mut self, phase: Phase) {
        if std::mem::replace(&mut self.phase, phase) != phase {
            self.since = self.clock.now();
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Some(Err(Failure::Over.into()))) };
        let failure = match Pin::new(body).poll_frame(cx) {
            Poll::Ready(Some(Err(error))) => {
                tracing::debug!(cause = &error as &dyn Error, "a request's body broke off");
                Failure::ClientGone
            }
            Poll::Ready(frame) => {
                (self.phase, self.since) = (Phase::Upstream, self.clock.now());
                (self.has_begun, self.has_ended) = (true, is_last(frame.as_ref()));
                let passed_on = |frame| passed_on(frame, &self.reserved);
                return Poll::Ready(frame.map(|frame| frame.map(passed_on).map_err(Into::into)));
            }
            Poll::Pending => {
                self.enter(Phase::Client);
                match &mut self.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    waker => *waker = Some(cx.waker().clone()),
                }
                let Self { alarm, clock, since, idle, .. } = self;
                ready!(alarm.poll(cx, || left(*idle, clock.now().since(*since), Failure::ClientSlow)))
            }
        };
        self.enter(Phase::Failed(failure));
        Poll::Ready(Some(Err(failure.into())))
    }
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.with(|sent| sent.poll(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.with(|sent| sent.body.as_ref().is_some_and(HttpBody::is_end_stream))
    }

    fn size_hint(&self) -> SizeHint {
        self.with(|sent| sent.body.as_ref().map(HttpBody::size_hint).unwrap_or_default())
    }
}

/// The body of a response. When it fails the client's connection breaks off: a response that was cut short never looks
/// whole. Its end is that of the exchange, whatever of the request is still to come: no limit would end that.
pub(super) struct Download<F> {
    body: Incoming,
    has_ended: bool,
    upload: Upload,
    limits: Limits,
    /// Since when something is waited for.
    waits: Option<Timestamp>,
    /// Is given back once all has been read.
    borrowed: Option<Borrowed>,
    /// Is told once.
    failed: Option<F>,
}

/// The time that an exchange has.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) clock: MonotonicClock,
    pub(super) began: Timestamp,
    pub(super) total: Duration,
    /// Between two pieces of bodies.
    pub(super) idle: Duration,
    pub(super) alarm: Alarm,
}

impl Limits {
    /// What is left of all of it.
    pub(super) fn total_left(&self, now: Timestamp) -> Result<Duration, Failure> {
        left(self.total, now.since(self.began), Failure::TotalTime)
    }
}

impl<F: FnOnce(Failure, Option<hyper::Error>) + Unpin> Download<F> {
    pub(super) fn new(
        body: Incoming,
        upload: Upload,
        limits: Limits,
        borrowed: Option<Borrowed>,
        failed: F,
    ) -> Self {
        Self { body, has_ended: false, upload, limits, waits: None, borrowed, failed: Some(failed) }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
        let now = self.limits.clock.now();
        // Asked first: a body that is always there would never be cut.
        if let Err(failure) = self.limits.total_left(now) {
            return Poll::Ready(Some(Err((failure, None))));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err((Failure::BrokeOff, Some(error))))),
            Poll::Ready(frame) => {
                self.waits = None;
                self.has_ended = is_last(frame.as_ref());
                self.upload.passed(now);
                let passed_on = |frame| passed_on(frame, &Reserved::ALWAYS);
                Poll::Ready(
                    frame.map(|frame| frame.map(passed_on).map_err(|error| (Failure::BrokeOff, Some(error)))),
                )
            }
            Poll::Pending => {
                let waits = *self.waits.get_or_insert(now);
                let (limits, upload) = (&mut self.limits, &self.upload);
                let mut alarm = std::mem::take(&mut limits.alarm);
                let over = alarm.poll(cx, || {
                    let now = limits.clock.now();
                    let (_, passed) = upload.stands();
                    let idle = left(limits.idle, now.since(waits.max(passed)), Failure::IdleTime)?;
                    Ok(limits.total_left(now)?.min(idle))
                });
                limits.alarm = alarm;
                over.map(|failure| Some(Err((failure, None))))
            }
        }
    }
}

impl<F> Drop for Download<F> {
    fn drop(&mut self) {
        let is_read = self.has_ended || self.body.is_end_stream();
        match self.borrowed.take() {
            Some(borrowed) if is_read && self.upload.is_sent() => borrowed.give_back(),
            _ => self.upload.cut(),
        }
    }
}

impl<F: FnOnce(Failure, Option<hyper::Error>) + Unpin> HttpBody for Download<F> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let (failure, cause) = match ready!(self.poll(cx)) {
            Some(Err(failed)) => failed,
            Some(Ok(frame)) => return Poll::Ready(Some(Ok(frame))),
            None => return Poll::Ready(None),
        };
        if let Some(failed) = self.failed.take() {
            failed(failure, cause);
        }
        Poll::Ready(Some(Err(failure.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
