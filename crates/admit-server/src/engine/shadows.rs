//! Budgets in shadow mode: charged beside the decision, which waits for none of them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use admit_tower::{Admitted, CorrelationId, Event, Limiter, Observer, Quota};
use futures::future::join_all;
use http::request::Parts;
use tokio::sync::{Semaphore, watch};

use super::Store;
use crate::metrics::{Metrics, ShadowMetrics};

/// Of how many requests shadows are charged at once: while the store is slow, those of more are counted as unavailable.
const MAX_REQUESTS: usize = 1_024;

/// Charges shadows. Clones share their bound.
#[derive(Clone, Debug)]
pub(super) struct Shadows {
    limiter: Limiter<Store>,
    metrics: ShadowMetrics,
    room: Arc<Semaphore>,
}

/// What was debited, if that is known already.
#[derive(Clone, Debug)]
pub enum Debited {
    /// It is known.
    Known(Vec<Admitted>),
    /// The store has been asked, and tells it here.
    Coming(watch::Receiver<Option<Vec<Admitted>>>),
}

impl Debited {
    /// Waits until it is known.
    pub async fn all(self) -> Vec<Admitted> {
        match self {
            Self::Known(debited) => debited,
            Self::Coming(mut coming) => {
                let debited = coming.wait_for(Option::is_some).await.map(|debited| debited.clone());
                debited.ok().flatten().unwrap_or_default() // One that panicked has said so.
            }
        }
    }
}

impl Default for Debited {
    fn default() -> Self {
        Self::Known(Vec::new())
    }
}

impl Shadows {
    pub(super) fn new(store: Store, metrics: Metrics) -> Self {
        let metrics = ShadowMetrics(metrics);
        let limiter = Limiter::new(store).observer(metrics.clone());
        Self { limiter, metrics, room: Arc::new(Semaphore::new(MAX_REQUESTS)) }
    }

    /// Charges each apart, all at once. What each decides is told to observers alone.
    pub(super) async fn charge(&self, request: &Parts, quotas: Vec<Quota>) -> Debited {
        if quotas.is_empty() {
            return Debited::default();
        }
        let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else {
            for quota in &quotas {
                self.metrics.observe(Event::Unavailable(&quota.charge.scope));
            }
            return Debited::default();
        };
        let (limiter, id) = (self.limiter.clone(), CorrelationId::of(request));
        let mut charging: Pin<Box<dyn Future<Output = Vec<Admitted>> + Send>> = Box::pin(async move {
            let (mut head, ()) = http::Request::new(()).into_parts();
            head.extensions.insert(id);
            let decided = join_all(quotas.into_iter().map(|quota| limiter.decide(&head, vec![quota]))).await;
            drop(permit);
            decided.into_iter().flatten().collect()
        });
        // A store in memory has answered already; one that has not is not waited for.
        match std::future::poll_fn(|cx| Poll::Ready(charging.as_mut().poll(cx))).await {
            Poll::Ready(debited) => Debited::Known(debited),
            Poll::Pending => {
                let (known, coming) = watch::channel(None);
                tokio::spawn(async move { known.send_replace(Some(charging.await)) });
                Debited::Coming(coming)
            }
        }
    }
}
