//! The way of one request through the idempotency layer.

use std::pin::pin;
use std::time::Duration;

use admit::idempotency::{Claim, Outcome};
use admit::{IdempotencyStore, Unavailable};
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tokio::time::timeout;
use tower::Service;
use tracing::{Instrument, Span, debug, error};

use crate::body::{self, Read};
use crate::detached::{Attempt, Detached};
use crate::idempotency::IdempotencyLayer;
use crate::ledger::Ledger;
use crate::observe::{Event, Keyed};
use crate::request_key::{self, Glance, IDEMPOTENCY_KEY, RequestKey};
use crate::{Body, CorrelationId, IdempotencyPolicy, Idempotent, Problem, Rejection, problem, replay};

/// After how long a waiting request first asks the store again.
const FIRST_POLL: Duration = Duration::from_millis(25);
/// The interval doubles up to this.
const LAST_POLL: Duration = Duration::from_secs(1);

/// What the head and the body of a request say.
enum Sorted<Req> {
    Unkeyed(Body<Req>),
    Keyed(Box<Idempotent>, Box<RequestKey>, Body<Req>),
}

/// Why there is no response of the service.
enum Stopped {
    Rejection(Rejection),
    /// The budgets' own answer.
    Problem(Box<Problem>),
}

impl From<Rejection> for Stopped {
    fn from(rejection: Rejection) -> Self {
        Self::Rejection(rejection)
    }
}

impl From<Box<Problem>> for Stopped {
    fn from(problem: Box<Problem>) -> Self {
        Self::Problem(problem)
    }
}

impl<S: IdempotencyStore, P: IdempotencyPolicy> IdempotencyLayer<S, P> {
    pub(crate) async fn serve<I, Req, Res>(
        self,
        mut service: I,
        request: Request<Req>,
    ) -> Result<Response<Body<Res>>, I::Error>
    where
        I: Service<Request<Body<Req>>, Response = Response<Res>> + Send + 'static,
        I::Future: Send,
        I::Error: Send + 'static,
        Req: HttpBody<Data = Bytes> + Send + 'static,
        Res: HttpBody<Data = Bytes> + Send + 'static,
    {
        let (parts, body) = request.into_parts();
        let mut id = None; // Only a run, or the lack of one, has a cause in the log.
        let mut ledger = Ledger::new(self.purse.as_deref(), &parts);
        let sorted = self.sort(&parts, body).await;
        let (result, echo) = match sorted {
            Err(rejection) => {
                self.tell(Keyed::Invalid);
                let paid = ledger.pay_for_run(&parts).await;
                (Err(paid.map_or_else(Stopped::Problem, |()| rejection.into())), None)
            }
            Ok(Sorted::Unkeyed(body)) => match ledger.pay_for_run(&parts).await {
                Ok(()) => {
                    let response = service.call(Request::from_parts(parts, body)).await?;
                    let mut response = response.map(Body::wrap);
                    ledger.mark(response.headers_mut());
                    return Ok(response);
                }
                Err(problem) => (Err(problem.into()), None),
            },
            Ok(Sorted::Keyed(how, key, body)) => {
                let echo = key.echo();
                let request = Request::from_parts(parts.clone(), body);
                let id = id.insert(CorrelationId::of(&parts));
                (self.once(&parts, &how, &key, service, request, &mut ledger, id).await, echo)
            }
        };
        let mut response = match result {
            Ok(ran) => ran?,
            Err(Stopped::Problem(problem)) => problem.into_response_to(&parts.headers),
            Err(Stopped::Rejection(rejection)) => self
                .settings
                .renders
                .problem(&parts, &rejection, id.as_ref())
                .into_response_to(&parts.headers),
        };
        ledger.mark(response.headers_mut());
        if let Some(key) = echo {
            response.headers_mut().insert(IDEMPOTENCY_KEY, key);
        }
        Ok(response)
    }

    /// Finds out whether the request has a key, reading its body only if that takes it.
    async fn sort<Req: HttpBody<Data = Bytes>>(
        &self,
        parts: &Parts,
        body: Req,
    ) -> Result<Sorted<Req>, Rejection> {
        let how = match problem::is_grpc(&parts.headers) {
            true => None,
            false => self.policy.idempotent(parts),
        };
        let Some(how) = how else { return Ok(Sorted::Unkeyed(Body::wrap(body))) };
        let Glance::NeedsBody(header_key) = request_key::glance(&how, &parts.headers)? else {
            return Ok(Sorted::Unkeyed(Body::wrap(body)));
        };
        let max = self.settings.max_request_body;
        if body.size_hint().lower() > max as u64 {
            return Err(Rejection::BodyTooLarge { max });
        }
        let (bytes, trailers) = match body::read(body, max, self.settings.body_time_limit).await {
            Ok(Read::Whole { bytes, trailers }) => (bytes, trailers),
            Ok(Read::TooLong(_)) => return Err(Rejection::BodyTooLarge { max }),
            Ok(Read::TooSlow(_)) => return Err(Rejection::BodyTooSlow),
            Err(_) => return Err(Rejection::BodyUnreadable),
        };
        let key = request_key::request_key(&how, parts, header_key, &bytes)?;
        let body = Body::read(bytes, trailers);
        Ok(match key {
            Some(key) => Sorted::Keyed(Box::new(how), Box::new(key), body),
            None => Sorted::Unkeyed(body),
        })
    }

    /// Runs the request, or replays what it came to before.
    #[allow(clippy::too_many_arguments)] // Each is one part of the one request.
    async fn once<I, Req, Res>(
        &self,
        parts: &Parts,
        how: &Idempotent,
        key: &RequestKey,
        mut service: I,
        mut request: Request<Body<Req>>,
        ledger: &mut Ledger<'_>,
        id: &CorrelationId,
    ) -> Result<Result<Response<Body<Res>>, I::Error>, Stopped>
    where
        I: Service<Request<Body<Req>>, Response = Response<Res>> + Send + 'static,
        I::Future: Send,
        I::Error: Send + 'static,
        Req: HttpBody<Data = Bytes> + Send + 'static,
        Res: HttpBody<Data = Bytes> + Send + 'static,
    {
        let mut bound = pin!(timeout(self.settings.wait, std::future::pending::<()>()));
        let (mut poll, mut seat) = (FIRST_POLL, None);
        loop {
            let ended = self.runs.ended(&key.record); // Before the look, so that no end is missed.
            let seen = match self.look(how, key).await {
                Ok(None | Some(Claim::Run(_))) => {
                    let Some(permit) = self.runs.permit() else {
                        self.tell(Keyed::Overloaded);
                        ledger.give_all_back().await;
                        return Err(Rejection::Overloaded.into());
                    };
                    ledger.pay_for_run(parts).await?;
                    let attempt = self.detached(how, key, id).attempt(service, request, permit);
                    match tokio::spawn(attempt.instrument(Span::current())).await {
                        Ok(Attempt::Ran(ran)) => return Ok(ran),
                        Ok(Attempt::Panicked) | Err(_) => return Err(Rejection::Internal.into()),
                        Ok(Attempt::Unavailable(cause)) => {
                            ledger.give_all_back().await;
                            return Err(self.unavailable(&cause, id));
                        }
                        Ok(Attempt::Taken(seen, unused, unsent)) => {
                            (service, request) = (unused, unsent);
                            seen
                        }
                    }
                }
                Ok(Some(seen)) => seen,
                Err(cause) => {
                    ledger.give_all_back().await;
                    return Err(self.unavailable(&cause, id));
                }
            };
            ledger.pay_for_replay(parts).await?;
            match seen {
                Claim::Done(Outcome::Response(stored)) => {
                    let Some(response) = replay::replay(stored) else {
                        error!(correlation_id = %id, "a stored response is not HTTP");
                        return Err(Rejection::Internal.into());
                    };
                    debug!("replayed");
                    self.tell(Keyed::Replayed);
                    return Ok(Ok(response));
                }
                Claim::Done(Outcome::Tombstone { status }) => {
                    return Err(self.told(Keyed::Gone, Rejection::Gone { status }));
                }
                Claim::Blocked => return Err(self.told(Keyed::Blocked, Rejection::Blocked)),
                Claim::Mismatch => return Err(self.told(Keyed::Mismatch, Rejection::Mismatch)),
                Claim::Run(_) | Claim::InFlight { .. } => {}
            }
            if seat.is_none() {
                seat = self.waiters.try_acquire().ok();
            }
            if seat.is_none() {
                return Err(self.told(Keyed::InFlight, Rejection::InFlight));
            }
            tokio::select! {
                _ = &mut bound => return Err(self.told(Keyed::InFlight, Rejection::InFlight)),
                _ = timeout(poll, ended) => poll = (poll * 2).min(LAST_POLL),
            }
        }
    }

    async fn look(&self, how: &Idempotent, key: &RequestKey) -> Result<Option<Claim>, Unavailable> {
        let look = self.store.look(&key.record, &key.fingerprint, &how.terms, self.settings.time.now());
        match timeout(self.settings.store_time_limit, look).await {
            Ok(seen) => seen,
            Err(elapsed) => Err(Unavailable::new("idempotency", elapsed)),
        }
    }

    fn detached(&self, how: &Idempotent, key: &RequestKey, id: &CorrelationId) -> Detached<S> {
        Detached {
            store: self.store.clone(),
            key: key.clone(),
            terms: how.terms.clone(),
            time: self.settings.time.clone(),
            max_recorded_body: self.settings.max_recorded_body,
            answer_time_limit: self.settings.answer_time_limit,
            store_time_limit: self.settings.store_time_limit,
            observers: self.settings.observers.clone(),
            correlation_id: id.clone(),
        }
    }

    fn unavailable(&self, cause: &Unavailable, id: &CorrelationId) -> Stopped {
        let cause = cause as &dyn std::error::Error;
        error!(correlation_id = %id, error = cause, "idempotency records unavailable; the request does not run");
        self.told(Keyed::Unavailable, Rejection::Unavailable)
    }

    fn told(&self, keyed: Keyed, rejection: Rejection) -> Stopped {
        self.tell(keyed);
        rejection.into()
    }

    fn tell(&self, keyed: Keyed) {
        self.settings.observers.tell(Event::Idempotency(keyed));
    }
}
