//! A service that works as its requests say, behind the idempotency layer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use admit::idempotency::RecordKey;
use admit::{BudgetStore, Charge, Clock, Decision, Key, ManualClock, Now, Scope, Timestamp};
use admit_tower::{Body, BudgetLayer, IdempotencyLayer, IdempotencyPolicy, Idempotent, Limiter, Quota};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Empty;
use tokio::sync::{Notify, Semaphore};
use tower::{Service, service_fn};

use super::{BURST, INGEST, Seen, Server, Store, clock, time};

/// What the handler does, and how often it did.
#[derive(Clone, Default)]
pub struct Work {
    pub runs: Arc<AtomicUsize>,
    pub started: Arc<Notify>,
    /// A run with `x-hold` goes on when it gets a permit.
    pub go: Arc<Hold>,
}

pub struct Hold(pub Semaphore);

impl Default for Hold {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

pub async fn work(State(work): State<Work>, headers: HeaderMap, body: Bytes) -> Response {
    let run = work.runs.fetch_add(1, Ordering::SeqCst) + 1;
    work.started.notify_one();
    if headers.contains_key("x-hold") {
        work.go.0.acquire().await.unwrap().forget();
    }
    match headers.get("x-come-to").map(|value| value.to_str().unwrap()) {
        Some("panic") => panic!("as asked"),
        Some("large") => vec![b'x'; 100_000].into_response(),
        Some(status) => StatusCode::from_u16(status.parse().unwrap()).unwrap().into_response(),
        None => {
            let headers = [("location", format!("/jobs/{run}")), ("set-cookie", "session=secret".to_owned())];
            (StatusCode::ACCEPTED, headers, format!("job {run}, {} bytes", body.len())).into_response()
        }
    }
}

pub fn by_header() -> impl IdempotencyPolicy {
    |request: &Parts| (request.uri.path() != "/free").then(|| Idempotent::by_header("tenant"))
}

pub struct Setup {
    pub clock: ManualClock,
    pub store: Store,
    pub work: Work,
    pub seen: Seen,
    /// Whether the layer is told that its budgets are in the store of its records.
    pub one_store: bool,
}

impl Setup {
    pub fn new() -> Self {
        let clock = clock();
        let (work, seen) = (Work::default(), Seen::default());
        Self { store: Store::new(&clock), clock, work, seen, one_store: false }
    }

    /// With buckets and records apart, and in one store.
    pub fn both() -> [Self; 2] {
        [Self::new(), Self { one_store: true, ..Self::new() }]
    }

    /// A layer with budgets.
    pub fn held<P: IdempotencyPolicy>(&self, policy: P, hourly: &str) -> IdempotencyLayer<Store, P> {
        match self.one_store {
            true => self.layer(policy).budgets_in_store(self.budgets(hourly)),
            false => self.layer(policy).budgets(self.budgets(hourly)),
        }
    }

    pub fn layer<P: IdempotencyPolicy>(&self, policy: P) -> IdempotencyLayer<Store, P> {
        IdempotencyLayer::new(self.store.clone(), policy).time(time(&self.clock)).observer(self.seen.clone())
    }

    pub async fn serve<P: IdempotencyPolicy>(&self, layer: IdempotencyLayer<Store, P>) -> Server {
        let router = Router::new().route("/jobs", post(work)).route("/free", post(work));
        Server::start(router.with_state(self.work.clone()).layer(layer)).await
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn runs(&self) -> usize {
        self.work.runs.load(Ordering::SeqCst)
    }

    /// Waits until so many tokens of the caller's bucket are spent.
    pub async fn spent(&self, scope: Scope, tokens: f64) {
        while self.left(scope.clone()).await > 1000.0 - tokens {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until nothing of it is spent any more.
    pub async fn given_back(&self, scope: Scope) {
        let full = async {
            while self.left(scope.clone()).await < 1000.0 {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(10), full).await;
        waited.unwrap_or_else(|_| panic!("a payment of {scope} for no run stays spent"));
    }

    async fn left(&self, scope: Scope) -> f64 {
        let peek = [Charge::one(scope, Key::of("caller"), "1000/minute".parse().unwrap())];
        match self.store.peek(&peek, Now::At(self.now())).await.unwrap() {
            Decision::Granted(grant) => grant.left[0].unwrap(),
            Decision::Refused(_) => 0.0,
        }
    }

    pub fn budgets(&self, hourly: &str) -> BudgetLayer<Store, impl admit_tower::BudgetPolicy + use<>> {
        let hourly = hourly.parse().unwrap();
        let limiter = Limiter::new(self.store.clone()).time(time(&self.clock));
        BudgetLayer::new(limiter, move |_: &Parts| {
            let key = Key::of("caller");
            vec![
                Quota::new(INGEST, key, hourly, "hourly"),
                Quota::new(BURST, key, "1000/minute".parse().unwrap(), "burst").spent_by_replays(),
            ]
        })
    }
}

pub fn keyed(key: &str) -> http::request::Builder {
    Request::post("/jobs").header("idempotency-key", key)
}

pub fn record(key: &str) -> RecordKey {
    RecordKey::new("tenant", "POST", "/jobs", key)
}

pub fn told(response: &http::Response<Bytes>) -> (u16, String) {
    let json: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
    (response.status().as_u16(), json["error"].as_str().unwrap().to_owned())
}

/// A service that answers at once.
pub fn answers() -> impl Service<
    Request<Body<Empty<Bytes>>>,
    Response = http::Response<Empty<Bytes>>,
    Error = Infallible,
    Future: Send,
> + Clone
+ Send
+ 'static {
    service_fn(|_| std::future::ready(Ok(http::Response::new(Empty::new()))))
}
