//! The way of one request through the idempotency layer.

use std::mem;
use std::pin::pin;
use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey};
use admit::{Causes, IdempotencyStore, TakeError, Unavailable};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use http_body::Body as HttpBody;
use tokio::time::timeout;
use tower::Service;
use tracing::{Instrument, Span, debug, error};

use crate::detached::{Attempt, Detached};
use crate::idempotency::IdempotencyLayer;
use crate::ledger::Ledger;
use crate::observe::{Event, Keyed};
use crate::request_key::{self, Glance, IDEMPOTENCY_KEY, RequestKey};
use crate::{Body, CorrelationId, IdempotencyPolicy, Idempotent, Problem, Rejection, replay};

/// After how long a waiting request first asks the store again.
const FIRST_POLL: Duration = Duration::from_millis(25);
/// The interval doubles up to this.
const LAST_POLL: Duration = Duration::from_secs(1);

/// The longest body, in bytes, that is read before its request has paid where the key is in a header: no more than a
/// connection may hold of a head anyway.
const SMALL_BODY: u64 = 16 << 10;

/// What the head and the body of a request say.
enum Sorted<Req> {
    Unkeyed(Body<Req>),
    Keyed(Box<Idempotent>, Box<RequestKey>, Body<Req>),
}

/// One request, as far as it has come.
struct Asked<'r> {
    parts: &'r Parts,
    /// Empty while its run has it.
    ledger: Ledger,
    /// The key that the client did not send.
    echo: Option<HeaderValue>,
}

/// Why there is no response of the service.
enum Stopped {
    /// The key or the body is wrong. It spends what a run spends, and then is told.
    Invalid(Rejection),
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
        &self,
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
        let (mut parts, body) = request.into_parts();
        let how = match self.settings.protocol.is_call(&parts.headers) {
            true => None,
            false => self.policy.idempotent(&parts),
        };
        if how.is_some() {
            parts.extensions.get_or_insert_with(CorrelationId::random); // All that is logged of it has one id.
        }
        let ledger = Ledger::new(self.purse.clone(), &parts);
        let mut asked = Asked { parts: &parts, ledger, echo: None };
        let result = match self.sort(&mut asked, how, body).await {
            Ok(Sorted::Unkeyed(body)) => match asked.ledger.pay_for_run(&parts).await {
                Ok(()) => {
                    let (mut ledger, mut parts) = (asked.ledger, parts);
                    ledger.settle();
                    if let Some(paid) = ledger.paid() {
                        parts.extensions.insert(paid);
                    }
                    let response = service.call(Request::from_parts(parts, body)).await?;
                    let mut response = response.map(Body::wrap);
                    ledger.mark(response.headers_mut());
                    return Ok(response);
                }
                Err(problem) => Err(problem.into()),
            },
            Ok(Sorted::Keyed(how, key, body)) => self.once(&mut asked, &how, &key, service, body).await,
            Err(Stopped::Invalid(rejection)) => {
                self.tell(Keyed::Invalid);
                let paid = asked.ledger.pay_for_run(&parts).await;
                Err(paid.map_or_else(Stopped::Problem, |()| rejection.into()))
            }
            Err(stopped) => Err(stopped),
        };
        asked.ledger.settle();
        let mut response = match result {
            Ok(ran) => ran?,
            Err(Stopped::Problem(problem)) => self.settings.protocol.answer(*problem, &parts.headers),
            Err(Stopped::Rejection(rejection) | Stopped::Invalid(rejection)) => {
                let problem = self.settings.renders.problem(&parts, &rejection, parts.extensions.get());
                self.settings.protocol.answer(problem, &parts.headers)
            }
        };
        asked.ledger.mark(response.headers_mut());
        if let Some(key) = asked.echo {
            response.headers_mut().insert(IDEMPOTENCY_KEY, key);
        }
        Ok(response)
    }

    /// Finds out whether the request has a key, reading its body only if that takes it.
    async fn sort<Req>(
        &self,
        asked: &mut Asked<'_>,
        how: Option<Idempotent>,
        body: Req,
    ) -> Result<Sorted<Req>, Stopped>
    where
        Req: HttpBody<Data = Bytes>,
    {
        let parts = asked.parts;
        let Some(how) = how else { return Ok(Sorted::Unkeyed(Body::wrap(body))) };
        let glance = request_key::glance(&how, &parts.headers).map_err(Stopped::Invalid)?;
        let Glance::NeedsBody(header_key) = glance else { return Ok(Sorted::Unkeyed(Body::wrap(body))) };
        // One step does all of it, and needs the whole request.
        let waits =
            asked.ledger.is_one_step() && body.size_hint().exact().is_some_and(|size| size <= SMALL_BODY);
        if let Some(key) = &header_key
            && !waits
        {
            self.pay_ahead(asked, &how, key).await?;
        }
        let (max, limit) = (self.settings.max_request_body, self.settings.body_time_limit);
        let read = match self.ahead.read(body, max, limit).await {
            Ok(read) => read,
            Err(Rejection::Overloaded) => {
                asked.ledger.give_all_back().await;
                return Err(self.told(Keyed::Overloaded, Rejection::Overloaded));
            }
            Err(rejection) => return Err(Stopped::Invalid(rejection)),
        };
        let key = request_key::request_key(&how, parts, header_key, &read.bytes).map_err(Stopped::Invalid)?;
        let body = read.into_body();
        Ok(match key {
            Some(key) => Sorted::Keyed(Box::new(how), Box::new(key), body),
            None => Sorted::Unkeyed(body),
        })
    }

    /// Pays before the body is read, where the head has the key: what a run costs if the key is free, else what a replay
    /// costs. So no body takes up memory whose request does not fit its budgets. What becomes of the request is found out
    /// when its fingerprint is known.
    async fn pay_ahead(&self, asked: &mut Asked<'_>, how: &Idempotent, key: &str) -> Result<(), Stopped> {
        if asked.ledger.is_free() {
            return Ok(());
        }
        let record = request_key::record(how, asked.parts, key);
        let seen = match self.look(how, &record, &request_key::UNKNOWN_PAYLOAD).await {
            Ok(seen) => seen,
            Err(cause) => return Err(self.unavailable(&cause, &CorrelationId::of(asked.parts))),
        };
        match seen {
            None => asked.ledger.pay_for_run(asked.parts).await?,
            Some(_) => asked.ledger.pay_for_replay(asked.parts).await?,
        }
        Ok(())
    }

    /// Runs the request, or replays what it came to before.
    async fn once<I, Req, Res>(
        &self,
        asked: &mut Asked<'_>,
        how: &Idempotent,
        key: &RequestKey,
        mut service: I,
        body: Body<Req>,
    ) -> Result<Result<Response<Body<Res>>, I::Error>, Stopped>
    where
        I: Service<Request<Body<Req>>, Response = Response<Res>> + Send + 'static,
        I::Future: Send,
        I::Error: Send + 'static,
        Req: HttpBody<Data = Bytes> + Send + 'static,
        Res: HttpBody<Data = Bytes> + Send + 'static,
    {
        let (parts, id) = (asked.parts, CorrelationId::of(asked.parts));
        asked.echo = key.echo();
        let ledger = &mut asked.ledger;
        let mut request = Request::from_parts(parts.clone(), body);
        let mut bound = pin!(timeout(how.wait, std::future::pending::<()>()));
        let (mut poll, mut seat) = (FIRST_POLL, None);
        let mut looks = !ledger.is_one_step();
        loop {
            let ended = self.runs.ended(&key.record); // Before the look, so that no end is missed.
            // The claim tells if the key is free, also where that was seen before the body was read.
            let permit = if looks { None } else { self.runs.permit() };
            let seen = match permit.is_some() || ledger.covers_run() {
                true => Ok(None),
                false => self.look(how, &key.record, &key.fingerprint).await,
            };
            let seen = match seen {
                Ok(None | Some(Claim::Run(_))) => {
                    let Some(permit) = permit.or_else(|| self.runs.permit()) else {
                        self.tell(Keyed::Overloaded);
                        ledger.give_all_back().await;
                        return Err(Rejection::Overloaded.into());
                    };
                    if ledger.pays_with_claim().is_none() {
                        ledger.pay_for_run(parts).await?;
                    }
                    let paid = mem::take(ledger);
                    let attempt = self.detached(how, key, &id).attempt(service, request, permit, paid);
                    let attempted = tokio::spawn(attempt.instrument(Span::current())).await;
                    let attempted = attempted.map(|(attempt, paid)| {
                        *ledger = paid;
                        attempt
                    });
                    match attempted {
                        Ok(Attempt::Ran(ran)) => return Ok(ran),
                        Ok(Attempt::Unpaid(why)) => {
                            // The one step that failed was also to ask for the record. The ledger logs it.
                            if let Err(TakeError::Unavailable(_)) = &why {
                                self.tell(Keyed::Unavailable);
                            }
                            let problem = ledger.run_is_not_paid(parts, why).await;
                            return Err(problem.map_or(Rejection::Internal.into(), Stopped::Problem));
                        }
                        Ok(Attempt::Panicked) => return Err(Rejection::Internal.into()),
                        Ok(Attempt::Broken) => return Err(Rejection::AnswerBroken.into()),
                        Err(panicked) => {
                            error!(correlation_id = %id, error = %panicked, "a run ended before its record was settled");
                            return Err(self.told(Keyed::Unrecorded, Rejection::Internal));
                        }
                        Ok(Attempt::Unavailable(cause, unpaid)) => {
                            let unavailable = self.unavailable(&cause, &id);
                            if let Some(why) = unpaid {
                                let _ = ledger.run_is_not_paid(parts, Err(why.into())).await;
                            }
                            ledger.give_all_back().await;
                            return Err(unavailable);
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
                    return Err(self.unavailable(&cause, &id));
                }
            };
            looks = true; // Whoever waits for another takes up no place of a run.
            ledger.pay_for_replay(parts).await?;
            ledger.settle(); // Who leaves while another runs has asked all the same.
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
                seat = self.runs.seat();
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

    async fn look(
        &self,
        how: &Idempotent,
        record: &RecordKey,
        fingerprint: &Fingerprint,
    ) -> Result<Option<Claim>, Unavailable> {
        let look = self.store.look(record, fingerprint, &how.terms, self.settings.time.now());
        match timeout(self.settings.store_time_limit, look).await {
            Ok(seen) => seen,
            Err(elapsed) => Err(Unavailable::timed_out("idempotency", elapsed)),
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
        error!(correlation_id = %id, error = %Causes(cause), "idempotency records unavailable; the request does not run");
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
