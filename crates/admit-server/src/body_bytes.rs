//! What a request pays for the bytes of its body: what crosses the wire.
//!
//! With a length in its head that is charged before anything is read, and what then does not come is given back. Without
//! one (chunked, or in HTTP/2) the body is read first, up to a bound.

use std::pin::Pin;
use std::task::{Context, Poll};

use admit::Cost;
use admit_tower::{Admitted, Limiter, Quota};
use axum::body::{Body, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, Collected, Full};

use crate::engine::Store;

/// A body that was read to its end, as it was.
pub(crate) fn again(read: Collected<Bytes>) -> (Bytes, Body) {
    let trailers = read.trailers().cloned();
    let bytes = read.to_bytes();
    let body = match trailers {
        None => Body::from(bytes.clone()),
        Some(trailers) => {
            Body::new(Full::new(bytes.clone()).with_trailers(std::future::ready(Some(Ok(trailers)))))
        }
    };
    (bytes, body)
}

/// The body of an admitted request whose bytes were charged as they were announced. When it is dropped, the bytes that
/// did not come are given back. A crash before that loses them: it admits less, never more.
pub(crate) struct Announced {
    body: Body,
    left: u64,
    limiter: Limiter<Store>,
    admitted: Option<Admitted>,
}

impl Announced {
    /// `charged` tells which of the quotas were charged by the byte.
    pub(crate) fn watch(
        body: Body,
        admitted: &Admitted,
        charged: impl Fn(&Quota) -> bool,
        limiter: &Limiter<Store>,
    ) -> Body {
        let left = body.size_hint().exact().unwrap_or_default();
        let by_byte = admitted.part(|quota| charged(quota).then_some(quota.charge.cost));
        match left == 0 || by_byte.is_free() {
            true => body,
            false => Body::new(Self { body, left, limiter: limiter.clone(), admitted: Some(by_byte) }),
        }
    }
}

impl HttpBody for Announced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            self.left = self.left.saturating_sub(length);
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

impl Drop for Announced {
    fn drop(&mut self) {
        let (left, admitted) = (Cost::bytes(self.left), self.admitted.take());
        let Some(admitted) = admitted.filter(|_| self.left > 0) else { return };
        // Without a runtime the process is about to end.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let limiter = self.limiter.clone();
        runtime.spawn(async move { limiter.give_back(admitted.part(|_| Some(left))).await });
    }
}
