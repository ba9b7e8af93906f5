//! What answers requests, whichever front they come to.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use admit_tower::CorrelationId;
use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use futures::future::BoxFuture;
use tower::service_fn;

use crate::metrics::Metrics;

/// Answers requests. Clones share it.
#[derive(Clone)]
pub(crate) struct Answers(Arc<dyn Fn(Request) -> BoxFuture<'static, Response> + Send + Sync>);

impl Answers {
    /// Counts what this answers. All that is logged of a request has one id.
    pub(super) fn counted<A: Future<Output = Response> + Send + 'static>(
        metrics: Metrics,
        answer: impl Fn(Request) -> A + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(move |mut request| {
            request.extensions_mut().get_or_insert_with(CorrelationId::random);
            let (metrics, began) = (metrics.clone(), metrics.begin());
            let answering = answer(request);
            Box::pin(async move {
                let response = answering.await;
                metrics.answered(response.status().as_u16(), began);
                response
            })
        }))
    }

    /// Answers one.
    pub(crate) fn answer(&self, request: Request) -> BoxFuture<'static, Response> {
        self.0(request)
    }

    /// The same as a router, for listeners.
    pub(super) fn router(self) -> Router {
        Router::new().fallback_service(service_fn(move |request| {
            let answering = self.answer(request);
            async move { Ok::<_, Infallible>(answering.await) }
        }))
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}
