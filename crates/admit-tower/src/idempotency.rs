//! The layer that runs each idempotency key once.
//!
//! The order in one request: read the body if the key is in it (bounded), look the key up, take the budgets,
//! read the body if it was not read yet, claim, run. So a replay spends only the budgets that are [marked for
//! it](crate::Quota::spent_by_replays), a refused request leaves no record, and a request whose key or body
//! is wrong spends what a run spends. Where the key is in a header, a refused request's body is not even
//! read, unless it is short and all of it [is one call](IdempotencyLayer::budgets_in_store).
//!
//! ```
//! use admit_tower::{Idempotent, IdempotencyLayer};
//! use http::{Method, request::Parts};
//! # #[derive(Clone)] struct Tenant(String);
//! # fn layer(store: impl admit::IdempotencyStore) {
//!
//! let layer = IdempotencyLayer::new(store, |request: &Parts| {
//!     let tenant = request.extensions.get::<Tenant>()?; // Put there by authentication.
//!     (request.method == Method::POST).then(|| Idempotent::by_header(tenant.0.clone()))
//! });
//! # let _ = layer;
//! # }
//! ```
//!
//! # What holds when things fail
//!
//! * The client hangs up: handler and record are finished all the same. While the request still waits for its
//!   turn, it is dropped, and given back what it paid for its run. Who asked for a key that another has in
//!   flight has paid for asking.
//! * The handler answers 5xx, 429, 408, 401 or 403: the key is free again.
//! * The handler panics, the service fails, or the response's body breaks off: the key is free again, unless
//!   work must not be started twice ([`StayBlocked`](admit::idempotency::OnLapse::StayBlocked)). Then it is
//!   as if the process had died.
//! * The store is unavailable before the run: 503, nothing ran. If it was the answer to the claim that got
//!   lost, the key is in flight until the lease lapses, as if the process had died.
//! * The store is unavailable after the run: the client gets the response once it was asked, within [its time
//!   limit](IdempotencyLayer::store_time_limit); the record is tried again until the store answers or the
//!   lease has surely lapsed, and the run keeps its place meanwhile. A retry that comes in between finds the
//!   key in flight. What remains is a store that is away for longer than what is left of the lease, two
//!   thirds of it at least: then [`OnLapse`](admit::idempotency::OnLapse) decides, and
//!   [`Keyed::Unrecorded`](crate::Keyed::Unrecorded) counts it. A handler that may not run twice records its
//!   response in its own transaction ([`run`](crate::run)) or stays blocked.
//! * The process dies before the record is there: the same.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use admit::{AdmissionStore, BudgetStore, IdempotencyStore, TimeSource};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tower::{Layer, Service};

use crate::observe::{Observer, Observers};
use crate::problem::Protocol;
use crate::purse::Purse;
use crate::read_ahead::ReadAhead;
use crate::rejection::{Render, Renders};
use crate::runs::Runs;
use crate::{Body, BudgetLayer, BudgetPolicy, IdempotencyPolicy, ResponseFuture};

/// Puts [`Idempotency`] in front of a service. Clones share the bound on runs.
pub struct IdempotencyLayer<S, P> {
    pub(crate) store: S,
    pub(crate) policy: Arc<P>,
    pub(crate) settings: Settings,
    pub(crate) purse: Option<Purse>,
    pub(crate) runs: Runs,
    pub(crate) ahead: ReadAhead,
}

/// The longest request body that is read for its key or fingerprint, in bytes.
const DEFAULT_MAX_REQUEST_BODY: usize = 1 << 20;
/// The longest response body that is recorded, in bytes.
const DEFAULT_MAX_RECORDED_BODY: usize = 1 << 20;
/// How long the body of a response is read for its record.
const DEFAULT_ANSWER_TIME_LIMIT: Duration = Duration::from_secs(10);
/// How long a request body may take to arrive.
const DEFAULT_BODY_TIME_LIMIT: Duration = Duration::from_secs(30);
/// How long the store may take for one operation before it counts as unavailable.
const DEFAULT_STORE_TIME_LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) time: TimeSource,
    pub(crate) renders: Renders,
    pub(crate) observers: Observers,
    pub(crate) max_request_body: usize,
    pub(crate) body_time_limit: Duration,
    pub(crate) max_recorded_body: usize,
    pub(crate) answer_time_limit: Duration,
    pub(crate) store_time_limit: Duration,
    pub(crate) protocol: Protocol,
}

impl<S: IdempotencyStore, P: IdempotencyPolicy> IdempotencyLayer<S, P> {
    /// Runs the requests that `policy` names once for each key.
    pub fn new(store: S, policy: P) -> Self {
        Self {
            store,
            policy: Arc::new(policy),
            settings: Settings {
                time: TimeSource::default(),
                renders: Renders::default(),
                observers: Observers::default(),
                max_request_body: DEFAULT_MAX_REQUEST_BODY,
                body_time_limit: DEFAULT_BODY_TIME_LIMIT,
                max_recorded_body: DEFAULT_MAX_RECORDED_BODY,
                answer_time_limit: DEFAULT_ANSWER_TIME_LIMIT,
                store_time_limit: DEFAULT_STORE_TIME_LIMIT,
                protocol: Protocol::default(),
            },
            purse: None,
            runs: Runs::default(),
            ahead: ReadAhead::default(),
        }
    }

    /// Takes these budgets, after the look-up and before the claim; see also
    /// [`budgets_in_store`](Self::budgets_in_store). In place of a [`BudgetLayer`] on the service, which
    /// would charge replays in full. Requests that are not idempotent are held to them too.
    #[must_use]
    pub fn budgets(mut self, budgets: BudgetLayer<impl BudgetStore, impl BudgetPolicy>) -> Self {
        self.purse = Some(Purse::new(budgets));
        self
    }

    /// The same for budgets whose buckets are in the store of the records: looking the key up, taking the
    /// budgets and claiming the key is [one call](AdmissionStore::admit), which a store may answer in one
    /// round trip, where it does that [in one step](AdmissionStore::admits_in_one_step); else it is as with
    /// [`budgets`](Self::budgets). The buckets are those of this layer's store, whatever handle `budgets`
    /// were made with, and their time decides.
    ///
    /// A short body, of up to 16 KiB, is read before the budgets are taken then, also where the key is in a
    /// header; a longer one still is not.
    #[must_use]
    pub fn budgets_in_store(mut self, budgets: BudgetLayer<S, impl BudgetPolicy>) -> Self
    where
        S: AdmissionStore,
    {
        self.purse = Some(Purse::in_store(budgets.over(self.store.clone())));
        self
    }

    /// Says that the service behind speaks gRPC: its calls pass without a key, as their outcome is in
    /// trailers, and their budgets refuse in gRPC. Without it every request is one of HTTP, whatever content
    /// type a client claims.
    #[must_use]
    pub fn before_grpc(mut self) -> Self {
        self.settings.protocol = Protocol::Grpc;
        self
    }

    /// Sets where `now` comes from.
    #[must_use]
    pub fn time(mut self, time: TimeSource) -> Self {
        self.settings.time = time;
        self
    }

    /// Sets how rejections read; those of the budgets read as their limiter has it.
    #[must_use]
    pub fn render(mut self, render: impl Render) -> Self {
        self.settings.renders = Renders::new(render);
        self
    }

    /// Sets who is told what each key came to.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.settings.observers = Observers::new(observer);
        self
    }

    /// Sets the longest request body in bytes; a longer one is answered with 413. Bodies are held in memory
    /// while they are read and run, all of them together as far as there is [room](Self::read_ahead). Where
    /// keys are in a header, only bodies whose request fits its budgets are read. Default 1 MiB.
    #[must_use]
    pub fn max_request_body(mut self, bytes: usize) -> Self {
        self.settings.max_request_body = bytes;
        self
    }

    /// Shares room for request bodies with other layers, in place of room of its own; a request whose body
    /// finds none is answered with 503. Default 256 MiB.
    #[must_use]
    pub fn read_ahead(mut self, ahead: ReadAhead) -> Self {
        self.ahead = ahead;
        self
    }

    /// Sets how long a request body may take to arrive; past it the answer is 408. Default 30 s.
    #[must_use]
    pub fn body_time_limit(mut self, limit: Duration) -> Self {
        self.settings.body_time_limit = limit;
        self
    }

    /// Sets the longest response body that is recorded, in bytes. Of a longer one only that it was given is
    /// recorded: a retry is told so, and does not run. Default 1 MiB.
    #[must_use]
    pub fn max_recorded_body(mut self, bytes: usize) -> Self {
        self.settings.max_recorded_body = bytes;
        self
    }

    /// Sets how long the body of a response is read for its record, from when its head is there. One that
    /// takes longer is a stream rather than an answer: the client gets it as it comes, and it is recorded
    /// like one that is too long, for its run would hold a place among the [runs](Self::max_runs) for as long
    /// as it lasts. Default 10 s.
    #[must_use]
    pub fn answer_time_limit(mut self, limit: Duration) -> Self {
        self.settings.answer_time_limit = limit;
        self
    }

    /// Sets how long the store may take for one operation. So that an answer comes before the lease ends, a
    /// claim has no more than two thirds of the lease, and a renewal no more than one. Default 5 s.
    #[must_use]
    pub fn store_time_limit(mut self, limit: Duration) -> Self {
        self.settings.store_time_limit = limit;
        self
    }

    /// Sets how many keyed requests run at once in this process; more are answered with 503. They go on when
    /// their clients hang up, so that the number of connections does not bound them. Nor does this layer
    /// bound their time: a handler that may hang needs a time limit of its own, or it holds its place and its
    /// key for ever. A request also holds a place while the store is asked for its key. Default 1,024.
    #[must_use]
    pub fn max_runs(mut self, max: u32) -> Self {
        self.runs = Runs::new(max);
        self
    }

    /// Shares runs with other layers, in place of runs of its own: their bound is one for all, as
    /// [`max_runs`](Self::max_runs) is for one.
    #[must_use]
    pub fn runs(mut self, runs: Runs) -> Self {
        self.runs = runs;
        self
    }

    /// [`Runs::idle`].
    pub async fn idle(&self) {
        self.runs.idle().await;
    }
}

impl<S: Clone, P> Clone for IdempotencyLayer<S, P> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            policy: Arc::clone(&self.policy),
            settings: self.settings.clone(),
            purse: self.purse.clone(),
            runs: self.runs.clone(),
            ahead: self.ahead.clone(),
        }
    }
}

impl<S, P> fmt::Debug for IdempotencyLayer<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<S: IdempotencyStore, P: IdempotencyPolicy, I> Layer<I> for IdempotencyLayer<S, P> {
    type Service = Idempotency<S, P, I>;

    fn layer(&self, inner: I) -> Self::Service {
        Idempotency { layer: Arc::new(self.clone()), inner }
    }
}

/// A service that runs each idempotency key once. It answers every request with a response; the error type is
/// that of the service behind it.
pub struct Idempotency<S, P, I> {
    layer: Arc<IdempotencyLayer<S, P>>,
    inner: I,
}

impl<S, P, I: Clone> Clone for Idempotency<S, P, I> {
    fn clone(&self) -> Self {
        Self { layer: Arc::clone(&self.layer), inner: self.inner.clone() }
    }
}

impl<S, P, I> fmt::Debug for Idempotency<S, P, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("layer", &self.layer).finish_non_exhaustive()
    }
}

impl<S, P, I, Req, Res> Service<Request<Req>> for Idempotency<S, P, I>
where
    S: IdempotencyStore,
    P: IdempotencyPolicy,
    I: Service<Request<Body<Req>>, Response = Response<Res>> + Clone + Send + 'static,
    I::Future: Send,
    I::Error: Send + 'static,
    Req: HttpBody<Data = Bytes> + Send + 'static,
    Res: HttpBody<Data = Bytes> + Send + 'static,
{
    type Response = Response<Body<Res>>;
    type Error = I::Error;
    type Future = ResponseFuture<Res, I::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Req>) -> Self::Future {
        let layer = Arc::clone(&self.layer);
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone); // The clone was not asked whether it is ready.
        ResponseFuture::new(async move { layer.serve(ready, request).await })
    }
}
