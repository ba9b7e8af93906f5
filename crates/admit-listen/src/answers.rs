//! What answers the requests of a listener.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

/// An answer on its way.
pub type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

/// Answers requests. Clones share it. A router is one; what finds its way without one need not stand in one, which would
/// put several layers around each request.
#[derive(Clone)]
pub struct Answers(Arc<dyn Fn(Request) -> Answering + Send + Sync>);

impl Answers {
    /// Answers by this function.
    pub fn new(answer: impl Fn(Request) -> Answering + Send + Sync + 'static) -> Self {
        Self(Arc::new(answer))
    }

    /// Answers one.
    pub fn answer(&self, request: Request) -> Answering {
        self.0(request)
    }
}

impl From<Router> for Answers {
    fn from(router: Router) -> Self {
        let router = TowerToHyperService::new(router);
        Self::new(move |request| {
            let answering = router.call(request);
            Box::pin(async move {
                let Ok(response) = answering.await;
                response
            })
        })
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}
