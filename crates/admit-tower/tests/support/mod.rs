//! A store that can fail, a server on a loopback port, and a client.

#![allow(dead_code, unreachable_pub)] // Each test file uses its part.

pub mod service;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Terms, Ticket};
use admit::{
    AdmissionError, AdmissionStore, BudgetStore, Charge, Decision, IdempotencyError, IdempotencyStore,
    ManualClock, Now, Rules, Scope, TakeError, TimeSource, Timestamp, Unavailable, Verdict, one_by_one,
};
use admit_store::memory::{Limits, MemoryStore};
use admit_tower::{Event, Observer};
use axum::Router;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::{Notify, Semaphore};

pub const INGEST: Scope = Scope::from_static("ingest");
pub const BURST: Scope = Scope::from_static("burst");

pub fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_unix_micros(1_700_000_000_000_000).unwrap())
}

pub fn time(clock: &ManualClock) -> TimeSource {
    TimeSource::Clock(Arc::new(clock.clone()))
}

/// A memory store that answers as long as it is told to.
#[derive(Clone)]
pub struct Store {
    inner: MemoryStore,
    pub down: Arc<AtomicBool>,
    /// Only buckets cannot be asked.
    pub takes_fail: Arc<AtomicBool>,
    /// They do not answer.
    pub takes_hang: Arc<AtomicBool>,
    pub claims_fail: Arc<AtomicBool>,
    /// What a run came to is written, and the answer lost.
    pub endings_lost: Arc<AtomicBool>,
    pub looks: Arc<AtomicUsize>,
    pub takes: Arc<AtomicUsize>,
    pub admissions: Arc<AtomicUsize>,
    /// Its admissions are in one step no more than its calls are.
    pub one_by_one: Arc<AtomicBool>,
    pub claims: Arc<AtomicUsize>,
    /// A look finds every key free, as if the claim that has it came just after.
    pub blind: Arc<AtomicBool>,
    pub claims_panic: Arc<AtomicBool>,
    /// How long a claim takes.
    pub claim_takes: Arc<Mutex<Duration>>,
    pub renewals: Arc<Hanging>,
    pub claiming: Arc<Hanging>,
    pub refunding: Arc<Hanging>,
}

/// Calls of one kind, which hang until they are let go on, if they are told to.
pub struct Hanging {
    pub hang: AtomicBool,
    pub begun: Notify,
    pub go: Semaphore,
    pub done: Notify,
    pub in_flight: AtomicUsize,
}

impl Default for Hanging {
    fn default() -> Self {
        Self {
            hang: AtomicBool::new(false),
            begun: Notify::new(),
            go: Semaphore::new(0),
            done: Notify::new(),
            in_flight: AtomicUsize::new(0),
        }
    }
}

impl Hanging {
    pub fn hang(&self, hang: bool) {
        self.hang.store(hang, Ordering::SeqCst);
    }

    /// The call, once it may go on.
    async fn call<T>(&self, answer: impl Future<Output = T>) -> T {
        if !self.hang.load(Ordering::SeqCst) {
            return answer.await;
        }
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let _in_flight = InFlight(self);
        self.begun.notify_one();
        self.go.acquire().await.unwrap().forget();
        let answer = answer.await;
        self.done.notify_one();
        answer
    }
}

/// Counts a call as in flight until it is done or dropped.
struct InFlight<'a>(&'a Hanging);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Store {
    pub fn new(clock: &ManualClock) -> Self {
        let rules = Rules::new([INGEST, BURST]).unwrap();
        let inner = MemoryStore::with(rules, Limits::default(), clock.clone());
        Self {
            inner,
            down: Arc::default(),
            takes_fail: Arc::default(),
            takes_hang: Arc::default(),
            claims_fail: Arc::default(),
            endings_lost: Arc::default(),
            looks: Arc::default(),
            takes: Arc::default(),
            admissions: Arc::default(),
            one_by_one: Arc::default(),
            claims: Arc::default(),
            blind: Arc::default(),
            claims_panic: Arc::default(),
            claim_takes: Arc::default(),
            renewals: Arc::default(),
            claiming: Arc::default(),
            refunding: Arc::default(),
        }
    }

    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    fn check(&self) -> Result<(), Unavailable> {
        match self.down.load(Ordering::SeqCst) {
            true => Err(Unavailable::new("test", "the disk is on fire")),
            false => Ok(()),
        }
    }
}

impl Store {
    fn answer_to_ending(&self) -> Result<(), IdempotencyError> {
        match self.endings_lost.swap(false, Ordering::SeqCst) {
            true => Err(Unavailable::new("test", "the connection broke").into()),
            false => Ok(()),
        }
    }
}

impl BudgetStore for Store {
    fn rules(&self) -> &Rules {
        self.inner.rules()
    }

    async fn take(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        self.check()?;
        self.takes.fetch_add(1, Ordering::SeqCst);
        if self.takes_fail.load(Ordering::SeqCst) {
            return Err(Unavailable::new("test", "the row is locked").into());
        }
        if self.takes_hang.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.inner.take(charges, now).await
    }

    async fn peek(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        self.check()?;
        self.inner.peek(charges, now).await
    }

    async fn refund(&self, charges: &[Charge]) -> Result<(), TakeError> {
        self.check()?;
        self.refunding.call(self.inner.refund(charges)).await
    }

    async fn delete_idle(&self, now: Now) -> Result<u64, Unavailable> {
        self.check()?;
        self.inner.delete_idle(now).await
    }
}

/// The three calls, each of which may fail.
impl AdmissionStore for Store {
    async fn admit(
        &self,
        charges: &[Charge],
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Verdict, AdmissionError> {
        self.admissions.fetch_add(1, Ordering::SeqCst);
        one_by_one(self, charges, key, fingerprint, terms, now).await
    }

    fn admits_in_one_step(&self, _: &[Charge]) -> bool {
        !self.one_by_one.load(Ordering::SeqCst)
    }
}

impl IdempotencyStore for Store {
    async fn look(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Option<Claim>, Unavailable> {
        self.check()?;
        self.looks.fetch_add(1, Ordering::SeqCst);
        if self.blind.load(Ordering::SeqCst) {
            return Ok(None);
        }
        self.inner.look(key, fingerprint, terms, now).await
    }

    async fn claim(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        now: Now,
    ) -> Result<Claim, Unavailable> {
        self.check()?;
        assert!(!self.claims_panic.load(Ordering::SeqCst), "as asked");
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.claiming.call(std::future::ready(())).await;
        if self.claims_fail.load(Ordering::SeqCst) {
            return Err(Unavailable::new("test", "the row is locked"));
        }
        let takes = *self.claim_takes.lock().unwrap();
        let _ = tokio::time::timeout(takes, std::future::pending::<()>()).await;
        self.inner.claim(key, fingerprint, terms, now).await
    }

    async fn renew(&self, ticket: &Ticket, terms: &Terms, now: Now) -> Result<Ticket, IdempotencyError> {
        self.check()?;
        self.renewals.call(self.inner.renew(ticket, terms, now)).await
    }

    async fn complete(
        &self,
        ticket: &Ticket,
        outcome: &Outcome,
        terms: &Terms,
        now: Now,
    ) -> Result<(), IdempotencyError> {
        self.check()?;
        self.inner.complete(ticket, outcome, terms, now).await?;
        self.answer_to_ending()
    }

    async fn release(&self, ticket: &Ticket, now: Now) -> Result<(), IdempotencyError> {
        self.check()?;
        self.inner.release(ticket, now).await?;
        self.answer_to_ending()
    }

    async fn delete_expired(&self, now: Now) -> Result<u64, Unavailable> {
        self.check()?;
        self.inner.delete_expired(now).await
    }
}

/// Remembers every event, as text.
#[derive(Clone, Default)]
pub struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for Seen {
    fn observe(&self, event: Event<'_>) {
        let text = match event {
            Event::Idempotency(keyed) => keyed.to_string(),
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(text);
    }
}

/// A server that stops when dropped.
pub struct Server {
    pub address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
    client: Client<HttpConnector, BoxBody<Bytes, std::io::Error>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub async fn start(router: Router) -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, task, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    pub async fn send(&self, request: http::request::Builder, body: impl Into<Bytes>) -> Response<Bytes> {
        let body = Full::new(body.into()).map_err(|never| match never {}).boxed();
        self.send_body(request.body(body).unwrap()).await
    }

    pub async fn send_body(&self, request: Request<BoxBody<Bytes, std::io::Error>>) -> Response<Bytes> {
        let (mut parts, body) = request.into_parts();
        parts.uri = format!("http://{}{}", self.address, parts.uri).parse().unwrap();
        let response = self.client.request(Request::from_parts(parts, body)).await.unwrap();
        let (parts, body) = response.into_parts();
        Response::from_parts(parts, body.collect().await.unwrap().to_bytes())
    }
}

pub fn text(response: &Response<Bytes>) -> &str {
    std::str::from_utf8(response.body()).unwrap()
}
