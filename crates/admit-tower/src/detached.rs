//! One run, from its claim to its record, apart from the connection that asked for it.
//!
//! Three tasks: the handler's, one that waits for it and [settles](crate::settling) the record, and one that
//! renews the lease until then. A client that hangs up takes none of them away, nor does a handler that
//! panics.

use std::time::Duration;

use admit::idempotency::{Claim, OnLapse, Outcome, Terms, Ticket};
use admit::{AdmissionError, IdempotencyStore, Refusal, TakeError, TimeSource, Unavailable, Verdict};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tower::Service;
use tracing::{Instrument, Span, error};

use crate::body::{self, Body, Read};
use crate::lease::Renewals;
use crate::ledger::Ledger;
use crate::observe::{Event, Keyed, Observers};
use crate::request_key::RequestKey;
use crate::run::{Recorded, Run};
use crate::runs::Permit;
use crate::settling::{Ending, Settling};
use crate::{CorrelationId, replay};

/// What a run needs beside the request.
pub(crate) struct Detached<S> {
    pub(crate) store: S,
    pub(crate) key: RequestKey,
    pub(crate) terms: Terms,
    pub(crate) time: TimeSource,
    pub(crate) max_recorded_body: usize,
    pub(crate) answer_time_limit: Duration,
    pub(crate) store_time_limit: Duration,
    pub(crate) observers: Observers,
    pub(crate) correlation_id: CorrelationId,
}

/// What an attempt to run came to.
pub(crate) enum Attempt<I, Req, Res, E> {
    /// It ran: the response, or the service's own error.
    Ran(Result<Response<Body<Res>>, E>),
    /// It ran and panicked.
    Panicked,
    /// It ran, and the body of its response broke off.
    Broken,
    /// It did not run, as the key is taken. The service and the request come back.
    Taken(Claim, I, Request<Req>),
    /// It did not run, as its budgets do not cover it, or could not be evaluated.
    Unpaid(Result<Refusal, TakeError>),
    /// It did not run, as the store could not say whether it may; nor, if that is told, evaluate the budgets,
    /// without which it might have run.
    Unavailable(Unavailable, Option<Unavailable>),
}

/// The response of a handler, as far as the record is concerned.
enum Answered<Res> {
    /// The handler recorded it.
    ByHandler(Response<Body<Res>>, Recorded),
    /// It is not to be recorded.
    Unrecorded(Response<Body<Res>>),
    /// It is to be recorded.
    Final(Response<Body<Res>>, Outcome),
    /// Its body broke off while it was read.
    Broken,
}

/// What a claim came to.
enum Claimed {
    Run(Ticket, Renewals),
    Taken(Claim),
    Unpaid(Result<Refusal, TakeError>),
    Unavailable(Unavailable, Option<Unavailable>),
}

impl<S: IdempotencyStore> Detached<S> {
    /// Claims the key, together with what the run has to pay if that is one step, and if that is granted,
    /// runs the request and settles the record. Not to be dropped half-way: a claim that nobody runs would
    /// hold its key until the lease lapses.
    ///
    /// The ledger comes back with what the run has paid. If nobody waits for it any more, it gives back what
    /// was paid for none.
    pub(crate) async fn attempt<I, Req, Res>(
        self,
        mut service: I,
        mut request: Request<Req>,
        permit: Permit,
        mut ledger: Ledger,
    ) -> (Attempt<I, Req, Res, I::Error>, Ledger)
    where
        I: Service<Request<Req>, Response = Response<Res>> + Send + 'static,
        I::Future: Send,
        I::Error: Send + 'static,
        Req: Send + 'static,
        Res: HttpBody<Data = Bytes> + Send + 'static,
    {
        let (ticket, renewals) = match self.pay_and_claim(&mut ledger).await {
            Claimed::Run(ticket, renewals) => (ticket, renewals),
            Claimed::Taken(taken) => return (Attempt::Taken(taken, service, request), ledger),
            Claimed::Unpaid(why) => return (Attempt::Unpaid(why), ledger),
            Claimed::Unavailable(cause, unpaid) => return (Attempt::Unavailable(cause, unpaid), ledger),
        };
        ledger.settle();
        let running = permit.start(self.key.record);
        let (time, max, limit) = (self.time.clone(), self.max_recorded_body, self.answer_time_limit);
        let run = Run::new(self.key.clone(), ticket.clone(), self.terms.clone(), time, max);
        request.extensions_mut().insert(run.clone());
        let handler = async move {
            let response = service.call(request).await?;
            Ok(read_answer(&run, response, max, limit).await)
        };
        let handler = tokio::spawn(handler.instrument(Span::current()));
        let (store, terms, time) = (self.store.clone(), self.terms.clone(), self.time.clone());
        let kept = renewals.keep(store, ticket.clone(), terms, time);
        let answered = handler.await;
        let (attempt, ending) = self.ended(answered);
        if let Some(ending) = ending {
            Settling { run: self, ticket, ending }.settle(running, kept).await;
        }
        (attempt, ledger)
    }

    /// Claims. Where what the run has to pay is taken in the same step, and that fails, and the budgets are
    /// such that the request may run uncharged, it claims alone.
    async fn pay_and_claim(&self, ledger: &mut Ledger) -> Claimed {
        let Some(one_store) = ledger.pays_with_claim() else { return self.claim(ledger, None).await };
        let (quotas, renewals) = (ledger.due_for_run(), self.renewals().await);
        let admitted = renewals.claimed(one_store.admit(&quotas, &self.key, &self.terms)).await;
        let late = |slow| Err(TakeError::from(Unavailable::timed_out("budget", slow)).into());
        match admitted.unwrap_or_else(late) {
            Ok(Verdict::Run(ticket, grant)) => {
                ledger.run_was_granted(grant);
                Claimed::Run(ticket, renewals)
            }
            Ok(Verdict::Taken(claim)) => Claimed::Taken(claim),
            Ok(Verdict::Refused(refusal)) => Claimed::Unpaid(Ok(refusal)),
            Err(AdmissionError::Budgets(TakeError::Unavailable(cause))) if ledger.may_go_without() => {
                self.claim(ledger, Some(cause)).await
            }
            Err(AdmissionError::Budgets(error)) => Claimed::Unpaid(Err(error)),
            Err(AdmissionError::Records(cause)) => Claimed::Unavailable(cause, None),
        }
    }

    /// Claims. That the request goes without having paid, and why, is told only if it runs.
    async fn claim(&self, ledger: &mut Ledger, unpaid: Option<Unavailable>) -> Claimed {
        let RequestKey { record, fingerprint, .. } = &self.key;
        let renewals = self.renewals().await;
        let claim = self.store.claim(record, fingerprint, &self.terms, self.time.now());
        match renewals.claimed(claim).await {
            Ok(Ok(Claim::Run(ticket))) => {
                if let Some(cause) = unpaid {
                    ledger.run_goes_without(&self.correlation_id, &cause);
                }
                Claimed::Run(ticket, renewals)
            }
            Ok(Ok(taken)) => Claimed::Taken(taken),
            Ok(Err(cause)) => Claimed::Unavailable(cause, unpaid),
            Err(slow) => Claimed::Unavailable(Unavailable::timed_out("idempotency", slow), unpaid),
        }
    }

    async fn renewals(&self) -> Renewals {
        Renewals::from_now(self.terms.lease, self.store_time_limit).await
    }

    /// What the run came to for the client, and for its record. Nothing for a record that is to stay as it
    /// is.
    fn ended<I, Req, Res, E>(
        &self,
        answered: Result<Result<Answered<Res>, E>, tokio::task::JoinError>,
    ) -> (Attempt<I, Req, Res, E>, Option<Ending>) {
        let id = &self.correlation_id;
        match answered {
            Ok(Ok(Answered::ByHandler(response, recorded))) => {
                self.tell(if recorded.is_tombstone { Keyed::Tombstoned } else { Keyed::Completed });
                (Attempt::Ran(Ok(response)), None)
            }
            Ok(Ok(Answered::Unrecorded(response))) => (Attempt::Ran(Ok(response)), Some(Ending::Release)),
            Ok(Ok(Answered::Final(response, outcome))) => {
                (Attempt::Ran(Ok(response)), Some(Ending::Complete(outcome)))
            }
            Ok(Ok(Answered::Broken)) => {
                error!(correlation_id = %id, "the body of a response to a keyed request broke off");
                (Attempt::Broken, self.abandoned())
            }
            Ok(Err(error)) => (Attempt::Ran(Err(error)), self.abandoned()),
            Err(panicked) => {
                error!(correlation_id = %id, error = %panicked, "the handler of a keyed request panicked");
                (Attempt::Panicked, self.abandoned())
            }
        }
    }

    /// Ends a run that nobody knows how far it came. Where its work must not be started twice that is like
    /// the death of its process: the record stays in flight until the lease lapses, and is blocked then.
    fn abandoned(&self) -> Option<Ending> {
        match self.terms.on_lapse {
            OnLapse::RunAgain => Some(Ending::Release),
            OnLapse::StayBlocked => {
                self.tell(Keyed::Unrecorded);
                None
            }
        }
    }

    pub(crate) fn tell(&self, keyed: Keyed) {
        self.observers.tell(Event::Idempotency(keyed));
    }
}

/// Reads the response as far as its record needs it.
async fn read_answer<Res: HttpBody<Data = Bytes>>(
    run: &Run,
    mut response: Response<Res>,
    max: usize,
    time_limit: Duration,
) -> Answered<Res> {
    if let Some(recorded) = run.takes_as_recorded(&mut response) {
        return Answered::ByHandler(response.map(Body::wrap), recorded);
    }
    if !replay::is_final(response.status()) {
        return Answered::Unrecorded(response.map(Body::wrap));
    }
    let (parts, body) = response.into_parts();
    let tombstone = Outcome::Tombstone { status: parts.status.as_u16() };
    match body::read(body, max, time_limit).await {
        Err(_) => Answered::Broken,
        Ok(Read::TooLong(body) | Read::TooSlow(body)) => {
            Answered::Final(Response::from_parts(parts, body), tombstone)
        }
        // Trailers are part of what such a response says, and a record has no room for them.
        Ok(Read::Whole { bytes, trailers: Some(trailers) }) => {
            Answered::Final(Response::from_parts(parts, Body::read(bytes, Some(trailers))), tombstone)
        }
        Ok(Read::Whole { bytes, trailers: None }) => {
            let outcome = replay::outcome(&parts, &bytes, max);
            Answered::Final(Response::from_parts(parts, Body::from(bytes)), outcome)
        }
    }
}
