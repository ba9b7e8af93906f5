//! The layer that holds requests to their budgets.
//!
//! ```
//! use admit_tower::{BudgetLayer, Limiter, Quota};
//! use http::request::Parts;
//! # fn layer(store: impl admit::BudgetStore) -> Result<(), Box<dyn std::error::Error>> {
//!
//! let (scope, budget) = (admit::Scope::from_static("query"), "1000/hour".parse()?);
//! let layer = BudgetLayer::new(Limiter::new(store), move |request: &Parts| {
//!     let caller = request.headers.get("x-api-key").map_or(&b""[..], |key| key.as_bytes());
//!     vec![Quota::new(scope.clone(), admit::Key::hashed(caller), budget, "1000 requests/hour")]
//! });
//! # let _ = layer; Ok(())
//! # }
//! ```

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use admit::BudgetStore;
use http::{Request, Response};
use tower::{Layer, Service};

use crate::problem::Protocol;
use crate::{Admission, Body, BudgetPolicy, Limiter};

/// Puts [`Budgets`] in front of a service.
pub struct BudgetLayer<S, P> {
    limiter: Limiter<S>,
    policy: Arc<P>,
    protocol: Protocol,
}

impl<S: BudgetStore, P: BudgetPolicy> BudgetLayer<S, P> {
    /// Holds requests to the quotas that `policy` names.
    pub fn new(limiter: Limiter<S>, policy: P) -> Self {
        Self { limiter, policy: Arc::new(policy), protocol: Protocol::default() }
    }

    /// Says that the service behind speaks gRPC: its calls are refused in gRPC, with the HTTP status 200. Without it every
    /// refusal is an HTTP problem, whatever content type a client claims: whoever takes 200 for leave to run, as a proxy
    /// that asks first, must not be answered so.
    #[must_use]
    pub fn before_grpc(mut self) -> Self {
        self.protocol = Protocol::Grpc;
        self
    }

    /// The same budgets in another store.
    pub(crate) fn over(self, store: S) -> Self {
        Self { limiter: self.limiter.over(store), ..self }
    }

    pub(crate) fn limiter(&self) -> &Limiter<S> {
        &self.limiter
    }

    pub(crate) fn policy(&self) -> &P {
        &self.policy
    }
}

impl<S: Clone, P> Clone for BudgetLayer<S, P> {
    fn clone(&self) -> Self {
        let (limiter, policy) = (self.limiter.clone(), Arc::clone(&self.policy));
        Self { limiter, policy, protocol: self.protocol }
    }
}

impl<S: fmt::Debug, P> fmt::Debug for BudgetLayer<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BudgetLayer").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

impl<S: BudgetStore, P: BudgetPolicy, I> Layer<I> for BudgetLayer<S, P> {
    type Service = Budgets<S, P, I>;

    fn layer(&self, inner: I) -> Self::Service {
        Budgets { layer: Arc::new(self.clone()), inner }
    }
}

/// A service whose requests run only if their budgets cover them. It answers every request with a response; the error
/// type is that of the service behind it.
pub struct Budgets<S, P, I> {
    layer: Arc<BudgetLayer<S, P>>,
    inner: I,
}

impl<S, P, I: Clone> Clone for Budgets<S, P, I> {
    fn clone(&self) -> Self {
        Self { layer: Arc::clone(&self.layer), inner: self.inner.clone() }
    }
}

impl<S: fmt::Debug, P, I> fmt::Debug for Budgets<S, P, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budgets").field("layer", &self.layer).finish_non_exhaustive()
    }
}

impl<S, P, I, ReqBody, ResBody> Service<Request<ReqBody>> for Budgets<S, P, I>
where
    S: BudgetStore,
    P: BudgetPolicy,
    I: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    I::Future: Send,
    ReqBody: Send + 'static,
{
    type Response = Response<Body<ResBody>>;
    type Error = I::Error;
    type Future = ResponseFuture<ResBody, I::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let layer = Arc::clone(&self.layer);
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone); // The clone was not asked whether it is ready.
        ResponseFuture::new(async move {
            let (mut parts, body) = request.into_parts();
            let quotas = layer.policy.quotas(&parts);
            match layer.limiter.admit(&parts, quotas).await {
                Admission::Admitted(admitted) => {
                    parts.extensions.insert(admitted.clone());
                    let response = ready.call(Request::from_parts(parts, body)).await?;
                    let mut response = response.map(Body::wrap);
                    admitted.mark(response.headers_mut());
                    Ok(response)
                }
                Admission::Rejected(problem) => Ok(layer.protocol.answer(*problem, &parts.headers)),
            }
        })
    }
}

/// The future of a response that passes a layer.
pub struct ResponseFuture<B, E>(Pin<Box<dyn Answering<B, E>>>);

trait Answering<B, E>: Future<Output = Result<Response<Body<B>>, E>> + Send {}

impl<B, E, F: Future<Output = Result<Response<Body<B>>, E>> + Send> Answering<B, E> for F {}

impl<B, E> ResponseFuture<B, E> {
    pub(crate) fn new(future: impl Future<Output = Result<Response<Body<B>>, E>> + Send + 'static) -> Self {
        Self(Box::pin(future))
    }
}

impl<B, E> Future for ResponseFuture<B, E> {
    type Output = Result<Response<Body<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<B, E> fmt::Debug for ResponseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
