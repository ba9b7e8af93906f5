//! What a request pays for the bytes of its body: what crosses the wire.
//!
//! With a length in its head that is charged before anything is read, and what then does not come is given back. Without
//! one (chunked, or in HTTP/2) the body is read first, up to a bound.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use admit::Cost;
use admit_tower::{Admitted, Limiter, Quota};
use axum::body::{Body, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::engine::{Debited, Store};
use crate::policy::{BudgetRule, CostSource, Policy};

/// The body of an admitted request whose bytes were charged as they were announced. When it is dropped, the bytes that
/// did not come are given back. A crash before that loses them: it admits less, never more.
pub(crate) struct Announced {
    body: Body,
    left: u64,
    limiter: Limiter<Store>,
    policy: Arc<Policy>,
    debited: Debited,
}

impl Announced {
    /// `debited` is what was charged for the request on budgets of `policy`, some of them by the byte.
    pub(crate) fn watch(body: Body, debited: Debited, policy: Arc<Policy>, limiter: &Limiter<Store>) -> Body {
        let left = body.size_hint().exact().unwrap_or_default();
        let is_by_the_byte = match &debited {
            Debited::Known(all) => all.iter().any(|admitted| !of_bytes(admitted, &policy, left).is_free()),
            Debited::Coming(_) => true, // It may be.
        };
        match left > 0 && is_by_the_byte {
            true => Body::new(Self { body, left, limiter: limiter.clone(), policy, debited }),
            false => body,
        }
    }
}

/// Of what was debited as much as this many bytes cost.
fn of_bytes(admitted: &Admitted, policy: &Policy, bytes: u64) -> Admitted {
    let by_byte = |budget: &&BudgetRule| budget.cost == CostSource::BodyBytes;
    let is_charged = |quota: &Quota| {
        policy.budgets.iter().filter(by_byte).any(|budget| budget.scope == quota.charge.scope)
    };
    admitted.part(|quota| is_charged(quota).then(|| Cost::bytes(bytes)))
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
        if self.left == 0 {
            return;
        }
        // Without a runtime the process is about to end.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (limiter, policy, left) = (self.limiter.clone(), Arc::clone(&self.policy), self.left);
        let debited = std::mem::take(&mut self.debited);
        runtime.spawn(async move {
            for admitted in debited.all().await {
                limiter.give_back(of_bytes(&admitted, &policy, left)).await;
            }
        });
    }
}
