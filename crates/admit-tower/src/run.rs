//! What a handler knows of its run, and how it records the response itself.
//!
//! A handler that keeps its data in the same database as the records completes the record in its own transaction, so
//! that both are there or neither. It takes the [`Run`] from the request's extensions, hands it the response, records
//! the [`Answer`] that it gets back, commits, and answers with it:
//!
//! ```
//! use admit::idempotency::{Outcome, Terms, Ticket};
//! use admit_tower::Run;
//! use bytes::Bytes;
//! use http::Response;
//!
//! # struct Transaction;
//! # impl Transaction {
//! #     fn insert_job(&self) -> u64 { 7 }
//! #     fn complete(&self, _: &Ticket, _: &Outcome, _: &Terms, _: admit::Now) {}
//! #     fn commit(self) {}
//! # }
//! fn handle(run: &Run, transaction: Transaction) -> Result<Response<Bytes>, admit_tower::NotRecorded> {
//!     let job = transaction.insert_job();
//!     let mut response = Response::new(Bytes::from(format!(r#"{{"job_id":{job}}}"#)));
//!     *response.status_mut() = http::StatusCode::ACCEPTED;
//!
//!     let answer = run.answer(response)?;
//!     transaction.complete(answer.ticket(), answer.outcome(), answer.terms(), answer.now());
//!     transaction.commit(); // If this fails, answer with a 5xx: the layer then frees the key.
//!     Ok(answer.into_response())
//! }
//! ```
//!
//! What is recorded is made of what is sent, so the two cannot differ.

use std::sync::Arc;

use admit::idempotency::{Fence, Fingerprint, Outcome, RecordKey, Terms, Ticket};
use admit::{Now, TimeSource};
use bytes::Bytes;
use http::{Response, StatusCode};

use crate::replay;
use crate::request_key::RequestKey;

/// The run that a request has claimed its key for: an extension of the request.
#[derive(Clone, Debug)]
pub struct Run(Arc<Claimed>);

#[derive(Debug)]
struct Claimed {
    key: RequestKey,
    ticket: Ticket,
    terms: Terms,
    time: TimeSource,
    max_body: usize,
}

/// The status is one after which a retry is to run, so that such a response is not recorded: just send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a response with status {0} is not recorded; send it, and the key is free again")]
pub struct NotRecorded(pub StatusCode);

impl Run {
    pub(crate) fn new(
        key: RequestKey,
        ticket: Ticket,
        terms: Terms,
        time: TimeSource,
        max_body: usize,
    ) -> Self {
        Self(Arc::new(Claimed { key, ticket, terms, time, max_body }))
    }

    /// The client's key, or the one made of the content.
    pub fn key(&self) -> &str {
        &self.0.key.text
    }

    /// The fingerprint of the payload.
    pub fn fingerprint(&self) -> Fingerprint {
        self.0.key.fingerprint
    }

    /// Makes the record of a response, to be written by the handler.
    ///
    /// # Errors
    /// [`NotRecorded`] for 5xx, 429, 408, 401 and 403.
    pub fn answer(&self, response: Response<Bytes>) -> Result<Answer, NotRecorded> {
        let (parts, body) = response.into_parts();
        if !replay::is_final(parts.status) {
            return Err(NotRecorded(parts.status));
        }
        let outcome = replay::outcome(&parts, &body, self.0.max_body);
        Ok(Answer { run: self.clone(), response: Response::from_parts(parts, body), outcome })
    }

    /// Whether the handler says that it recorded this response itself.
    pub(crate) fn takes_as_recorded<B>(&self, response: &mut Response<B>) -> Option<Recorded> {
        let recorded = response.extensions_mut().remove::<Recorded>()?;
        (recorded.key == self.0.ticket.key && recorded.fence == self.0.ticket.fence).then_some(recorded)
    }
}

/// A response and the record of it.
#[derive(Debug)]
#[must_use = "record the outcome, commit, and send the response"]
pub struct Answer {
    run: Run,
    response: Response<Bytes>,
    outcome: Outcome,
}

impl Answer {
    /// The right to complete the record.
    pub fn ticket(&self) -> &Ticket {
        &self.run.0.ticket
    }

    /// What to record.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The terms to record it on.
    pub fn terms(&self) -> &Terms {
        &self.run.0.terms
    }

    /// The moment to record it at.
    pub fn now(&self) -> Now {
        self.run.0.time.now()
    }

    /// The response to send, marked so that the layer leaves the record alone. Only after the record was committed: a
    /// record that was not is in flight until its lease lapses.
    pub fn into_response<B: From<Bytes>>(self) -> Response<B> {
        let Ticket { key, fence, .. } = self.run.0.ticket;
        let is_tombstone = matches!(self.outcome, Outcome::Tombstone { .. });
        let mut response = self.response.map(B::from);
        response.extensions_mut().insert(Recorded { key, fence, is_tombstone });
        response
    }
}

/// The mark of a response that its handler has recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded {
    key: RecordKey,
    fence: Fence,
    pub(crate) is_tombstone: bool,
}
