//! The bodies of an exchange, and the time that may pass without any of them.

use std::error::Error;
use std::future::{Pending, pending};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::watch;
use tokio::time::{Timeout, timeout};

use super::failure::Failure;
use super::reserved::Reserved;

pub(super) type Timer = Pin<Box<Timeout<Pending<()>>>>;
type BoxError = Box<dyn Error + Send + Sync>;
/// What went wrong, and from what.
type Failed = (Failure, Option<hyper::Error>);

pub(super) fn timer(time: Duration) -> Timer {
    Box::pin(timeout(time, pending()))
}

/// How far an exchange has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// The pieces of bodies that passed, in both directions.
    pub(super) pieces: u64,
    pub(super) request: Phase,
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

/// Fails when nothing of any body has passed for a time.
#[derive(Debug)]
struct Idle {
    progress: watch::Sender<Progress>,
    time: Duration,
    waits: Option<(u64, Timer)>,
}

impl Idle {
    fn passed(&mut self) {
        self.waits = None;
        self.progress.send_modify(|progress| progress.pieces = progress.pieces.wrapping_add(1));
    }

    /// To be polled while there is nothing.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let pieces = self.progress.borrow().pieces;
            let (since, waits) = self.waits.get_or_insert_with(|| (pieces, timer(self.time)));
            ready!(waits.as_mut().poll(cx)).ok();
            if *since == pieces {
                return Poll::Ready(());
            }
            self.waits = None; // The other direction went on.
        }
    }
}

fn passed_on(mut frame: Frame<Bytes>, reserved: &Reserved) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        reserved.drop_from_trailers(trailers);
    }
    frame
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
    idle: Idle,
    reserved: Arc<Reserved>,
}

impl Upload {
    pub(super) fn new(
        body: Body,
        progress: watch::Sender<Progress>,
        idle: Duration,
        reserved: Arc<Reserved>,
    ) -> Self {
        let idle = Idle { progress, time: idle, waits: None };
        Self(Arc::new(Mutex::new(Sent { body: Some(body), has_begun: false, idle, reserved })))
    }

    /// Whether all of it can still be sent.
    pub(super) fn is_whole(&self) -> bool {
        self.with(|sent| !sent.has_begun)
    }

    /// Ends it, as nobody waits for what is left of it. The client is read no further.
    fn cut(&self) {
        let rest = self.with(|sent| sent.body.take_if(|body| !body.is_end_stream()));
        drop(rest); // Not while it is locked: others' code runs.
    }

    fn with<T>(&self, f: impl FnOnce(&mut Sent) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Sent {
    fn stands(&self, request: Phase) {
        self.idle
            .progress
            .send_if_modified(|progress| std::mem::replace(&mut progress.request, request) != request);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Some(Err(Failure::Over.into()))) };
        let failure = match Pin::new(body).poll_frame(cx) {
            Poll::Ready(Some(Err(error))) => {
                tracing::debug!(cause = &error as &dyn Error, "a request's body broke off");
                Failure::ClientGone
            }
            Poll::Ready(frame) => {
                self.stands(Phase::Upstream);
                self.has_begun = true;
                self.idle.passed();
                let passed_on = |frame| passed_on(frame, &self.reserved);
                return Poll::Ready(frame.map(|frame| frame.map(passed_on).map_err(Into::into)));
            }
            Poll::Pending => {
                self.stands(Phase::Client);
                ready!(self.idle.poll(cx));
                Failure::ClientSlow
            }
        };
        self.stands(Phase::Failed(failure));
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
    upload: Upload,
    idle: Idle,
    total: Timer,
    /// Is told once.
    failed: Option<F>,
}

impl<F: FnOnce(Failure, Option<hyper::Error>) + Unpin> Download<F> {
    pub(super) fn new(
        body: Incoming,
        upload: Upload,
        progress: watch::Sender<Progress>,
        idle: Duration,
        total: Timer,
        failed: F,
    ) -> Self {
        Self { body, upload, idle: Idle { progress, time: idle, waits: None }, total, failed: Some(failed) }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
        // Asked first: a body that is always there would never be cut.
        if self.total.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err((Failure::TotalTime, None))));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err((Failure::BrokeOff, Some(error))))),
            Poll::Ready(frame) => {
                self.idle.passed();
                let passed_on = |frame| passed_on(frame, &Reserved::ALWAYS);
                Poll::Ready(
                    frame.map(|frame| frame.map(passed_on).map_err(|error| (Failure::BrokeOff, Some(error)))),
                )
            }
            Poll::Pending => self.idle.poll(cx).map(|()| Some(Err((Failure::IdleTime, None)))),
        }
    }
}

impl<F> Drop for Download<F> {
    fn drop(&mut self) {
        self.upload.cut();
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
