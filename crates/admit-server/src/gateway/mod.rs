//! A streaming reverse proxy to one service, served by one upstream or by several.
//!
//! Bodies pass as they come, in both directions, also after an upgrade (WebSocket). A request is sent again, to another
//! upstream if there is one, only where nothing of it was sent before, or processed as the upstream says. What goes wrong
//! is told apart: 502 if the upstream cannot be reached or breaks off, 504 if it takes too long, 408 if the client does.

mod body;
mod failure;
mod forwarded;
mod hop_by_hop;
mod pool;
mod request_head;
mod reserved;
mod roots;
mod rotation;
mod target;
mod unambiguous;
mod upgrade;

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use admit::{Causes, Clock, MonotonicClock};
use admit_listen::{Encrypted, Peer};
use admit_tower::CorrelationId;
use admit_tower::client_ip::TrustedProxies;
use axum::body::Body;
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use tower::Service;

use crate::metrics::Metrics;
use crate::policy::{Policy, UpstreamLimits, Upstreams};
use body::{Alarm, Download, Limits, Phase, Upload, left};
use failure::Failure;
use pool::Borrowed;
use reserved::Reserved;
use rotation::Rotation;
use target::{Target, Unanswered};

pub(crate) use failure::of_a_record;
pub use roots::GatewayError;
pub(crate) use unambiguous::unambiguous;

/// Sends requests to the upstreams. Clones share its connections, and what it knows of the upstreams' health.
#[derive(Clone, Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    terms: Arc<Terms>,
}

/// What a policy holds it to.
#[derive(Debug)]
struct Terms {
    trusted: TrustedProxies,
    reserved: Arc<Reserved>,
}

#[derive(Debug)]
struct Shared {
    clock: MonotonicClock,
    upstreams: Upstreams,
    rotation: Rotation,
    metrics: Metrics,
}

/// A request that was sent, and is answered.
struct Exchange {
    id: CorrelationId,
    upgrade: Option<upgrade::Upgrade>,
    upload: Upload,
    limits: Limits,
    borrowed: Option<Borrowed>,
}

impl Gateway {
    /// The gateway to the upstreams that a policy names, if it names any. It makes no connection yet.
    ///
    /// # Errors
    /// [`GatewayError`] if no certificate of an upstream could be checked.
    pub fn new(policy: &Policy, metrics: Metrics) -> Result<Option<Self>, GatewayError> {
        let upstreams = policy.server.upstream.clone();
        if upstreams.urls.is_empty() {
            return Ok(None);
        }
        let tls = roots::client_config(&upstreams)?;
        let target = |url| Target::new(url, &tls, &upstreams.limits);
        let rotation = Rotation::new(upstreams.urls.iter().filter_map(target).collect());
        Ok(Some(Self::held_to(
            policy,
            Arc::new(Shared { clock: MonotonicClock::start(), upstreams, rotation, metrics }),
        )))
    }

    /// Whether a service of gRPC may be behind it: that takes HTTP/2.
    pub(crate) fn may_speak_grpc(&self) -> bool {
        self.shared.rotation.members().iter().any(|member| member.target.has_http2())
    }

    /// Whether this goes to the upstreams that a policy names, so that its connections can be kept. A file of roots may
    /// have changed under its name, so that a gateway with one is made anew.
    pub fn is_to(&self, upstreams: &Upstreams) -> bool {
        self.shared.upstreams == *upstreams && upstreams.ca.is_none()
    }

    /// The same, with the same connections, under another policy: it takes the word of other proxies, and keeps other headers.
    #[must_use]
    pub fn under(&self, policy: &Policy) -> Self {
        Self::held_to(policy, self.shared.clone())
    }

    fn held_to(policy: &Policy, shared: Arc<Shared>) -> Self {
        let reserved = Arc::new(Reserved::of(policy));
        Self { shared, terms: Arc::new(Terms { trusted: policy.server.trusted.clone(), reserved }) }
    }

    async fn forward(self, mut request: Request<Body>) -> Response<Body> {
        let (shared, Terms { trusted, reserved }) = (&self.shared, &*self.terms);
        let id = request.extensions().get().cloned().unwrap_or_else(CorrelationId::random);
        let order = shared.rotation.order();
        let mut upgrade = upgrade::asked(&mut request);
        if !order.iter().all(|member| member.target.has_upgrades()) {
            upgrade = None;
        }
        request_head::settle(&mut request, reserved);
        hop_by_hop::strip(request.headers_mut(), reserved);
        if let Some(upgrade) = &upgrade {
            upgrade.ask(request.headers_mut());
        }
        let peer = request.extensions().get::<Peer>().map(|Peer(address)| address.ip());
        let encrypted = request.extensions().get::<Encrypted>().is_some();
        forwarded::set(request.headers_mut(), peer, encrypted, trusted);

        let (mut parts, body) = request.into_parts();
        parts.extensions.clear(); // They are about the request as it came.
        let path = parts.uri.path_and_query().cloned();
        let UpstreamLimits { idle, total, .. } = shared.upstreams.limits;
        let clock = shared.clock;
        let upload = Upload::new(body, clock, idle, reserved.clone());
        let limits = Limits { clock, began: clock.now(), total, idle, alarm: Alarm::default() };
        let mut failure = Failure::Connect; // Of the last upstream; there is one.
        // Only an upstream of HTTP/2 says that it refused a request unread.
        let tries = order.len() + usize::from(order.iter().any(|member| member.target.has_http2()));
        let mut kept = Some(parts);
        // Where all of them have refused the request unread, the first is asked once more.
        for (i, member) in order.iter().chain(order.first()).enumerate() {
            if i == order.len() && failure != Failure::Refused {
                break;
            }
            // For the last try it need not be kept.
            let parts = if i + 1 < tries { kept.clone() } else { kept.take() };
            let Some(parts) = parts else { break };
            let target = &member.target;
            let request = Request::from_parts(parts, upload.clone());
            let sending = target.send(request, path.clone(), upgrade.is_some());
            let head = shared.head(sending, &upload, &limits).await;
            let (failed, cause) = match head {
                Ok((response, borrowed)) => {
                    shared.rotation.take_in(member);
                    let exchange = Exchange { id, upgrade, upload, limits, borrowed };
                    return self.answer(response, exchange, target);
                }
                Err(failed) => failed,
            };
            failure = failed;
            let is_away = failure.is_before_the_request();
            let is_known = is_away && !shared.rotation.leave_out(member);
            shared.failed(&id, target, failed, cause.as_ref().map(|cause| cause as _), is_known);
            if is_away {
                continue;
            }
            shared.rotation.take_in(member);
            if failure != Failure::Refused || !upload.is_whole() {
                break;
            }
        }
        upload.cut();
        failure.response()
    }

    fn answer(
        &self,
        mut response: Response<Incoming>,
        exchange: Exchange,
        target: &Target,
    ) -> Response<Body> {
        let Exchange { id, upgrade, upload, limits, borrowed } = exchange;
        let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let upgrade = upgrade.filter(|upgrade| switches && upgrade.is_to(response.headers()));
        if let Some(upgrade) = upgrade {
            return upgrade.join(response.map(Body::new), self.shared.upstreams.limits.idle);
        }
        if switches || hop_by_hop::is_coded(response.headers()) {
            // To what nobody asked for, or in a coding that would be lost.
            self.shared.failed(&id, target, Failure::Nonsense, None, false);
            upload.cut();
            return Failure::Nonsense.response();
        }
        hop_by_hop::strip(response.headers_mut(), &Reserved::ALWAYS);
        *response.version_mut() = Version::HTTP_11; // The gateway's own, whatever the upstream's is.
        let (shared, target) = (self.shared.clone(), target.clone());
        let failed = move |failure, cause: Option<hyper::Error>| {
            shared.failed(&id, &target, failure, cause.as_ref().map(|cause| cause as _), false);
        };
        response.map(|body| Body::new(Download::new(body, upload, limits, borrowed, failed)))
    }
}

impl Shared {
    /// Waits for the head of the response.
    async fn head<T>(
        &self,
        sending: impl Future<Output = Result<T, Unanswered>>,
        upload: &Upload,
        limits: &Limits,
    ) -> Result<T, (Failure, Option<Unanswered>)> {
        let (clock, mut alarm) = (self.clock, Alarm::default()); // Its own: the time between pieces may be shorter.
        upload.passed(clock.now());
        let left = || {
            let now = clock.now();
            let head = match upload.stands() {
                (Phase::Client, _) => self.upstreams.limits.head, // The body itself counts the client's time.
                (_, since) => left(self.upstreams.limits.head, now.since(since), Failure::HeadTime)?,
            };
            Ok(limits.total_left(now)?.min(head))
        };
        let mut sending = pin!(sending);
        let sent = poll_fn(|cx| match sending.as_mut().poll(cx) {
            Poll::Ready(Ok(sent)) => Poll::Ready(Ok(sent)),
            Poll::Ready(Err(error)) => {
                let failure = match upload.stands() {
                    (Phase::Failed(failure), _) => failure,
                    (Phase::Upstream | Phase::Client, _) => Failure::of(&error),
                };
                Poll::Ready(Err((failure, Some(error))))
            }
            Poll::Pending => alarm.poll(cx, left).map(|failure| Err((failure, None))),
        });
        sent.await
    }

    /// Tells operators: metrics each time, and the log unless it `is_known`, for while an upstream is away each request meets
    /// it.
    fn failed(
        &self,
        id: &CorrelationId,
        upstream: &Target,
        failure: Failure,
        cause: Option<&(dyn Error + 'static)>,
        is_known: bool,
    ) {
        let cause = Causes(cause.unwrap_or(&failure));
        let kind = failure.kind();
        if let Some(kind) = kind {
            self.metrics.upstream_failed(kind);
        }
        match kind.is_some() && !is_known {
            true => tracing::error!(correlation_id = %id, %upstream, error = %cause, "{failure}"),
            false => tracing::debug!(correlation_id = %id, %upstream, error = %cause, "{failure}"),
        }
    }
}

/// The upstreams' URLs.
impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, member) in self.shared.rotation.members().iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{}", member.target)?;
        }
        Ok(())
    }
}

impl Service<Request<Body>> for Gateway {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let gateway = self.clone();
        Box::pin(async move { Ok(gateway.forward(request).await) })
    }
}
