//! What answers requests, whichever front they come to.

use std::convert::Infallible;

use admit_listen::Answers;
use admit_tower::CorrelationId;
use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use tower::service_fn;

use crate::metrics::Metrics;

/// Counts what is answered. All that is logged of a request has one id.
pub(super) fn counted<A: Future<Output = Response> + Send + 'static>(
    metrics: Metrics,
    answer: impl Fn(Request) -> A + Send + Sync + 'static,
) -> Answers {
    Answers::new(move |mut request| {
        request.extensions_mut().get_or_insert_with(CorrelationId::random);
        let (metrics, began) = (metrics.clone(), metrics.begin());
        let answering = answer(request);
        Box::pin(async move {
            let response = answering.await;
            metrics.answered(response.status().as_u16(), began);
            response
        })
    })
}

/// The same as a router, for services that stand something before it.
pub(super) fn router(answers: Answers) -> Router {
    Router::new().fallback_service(service_fn(move |request| {
        let answering = answers.answer(request);
        async move { Ok::<_, Infallible>(answering.await) }
    }))
}
