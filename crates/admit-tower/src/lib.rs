//! Tower layers that hold HTTP requests to rate budgets and run each idempotency key once.
//!
//! A service that takes orders, a hundred an hour from each caller, each order once however often it is sent:
//!
//! ```
//! use admit::{Key, Rules, Scope};
//! use admit_store::memory::MemoryStore;
//! use admit_tower::{BudgetLayer, IdempotencyLayer, Idempotent, Limiter, Quota};
//! use axum::{Router, body::Body, http::{Request, request::Parts}, routing::post};
//! # use tower::ServiceExt;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!
//! let (orders, hourly) = (Scope::from_static("orders"), "100/hour".parse()?);
//! let store = MemoryStore::new(Rules::new([orders.clone()])?);
//! let caller = |request: &Parts| request.headers.get("x-api-key").map_or(Key::hashed(""), Key::hashed);
//! let budgets = BudgetLayer::new(Limiter::new(store.clone()), move |request: &Parts| {
//!     vec![Quota::new(orders.clone(), caller(request), hourly, "100 orders/hour")]
//! });
//! let once = IdempotencyLayer::new(store, move |request: &Parts| Some(Idempotent::by_header(caller(request).to_string())));
//! let app: Router = Router::new().route("/orders", post(async || "ordered")).layer(once.budgets_in_store(budgets));
//!
//! let order = || Request::post("/orders").header("x-api-key", "k").header("idempotency-key", "7").body(Body::empty());
//! let first = app.clone().oneshot(order()?).await?;
//! assert_eq!(first.headers()["ratelimit"], "\"orders\";r=99;t=36");
//! let again = app.oneshot(order()?).await?;
//! assert_eq!(again.headers()["idempotent-replayed"], "true");
//! # Ok(())
//! # }
//! ```
//!
//! * [`BudgetLayer`] charges what a [`BudgetPolicy`] names, and answers 429 where it does not fit; [`Limiter`] does the
//!   same for a handler that learns its cost late.
//! * [`IdempotencyLayer`] runs what an [`IdempotencyPolicy`] names once for each key, and replays it to the rest. With
//!   budgets of its own, a replay costs less than a run.
//! * [`Runs`] are what a service waits for before it ends.
//! * [`run`] lets a handler record its response in its own transaction.
//! * [`client_ip`] finds the client's address behind trusted proxies.
//! * [`Problem`], [`Rejection`] and [`Render`] are how answers read, and a client branches on their [`problem_type`];
//!   [`Observer`] is where metrics come from.
//!
//! The layers work with every service of HTTP requests: axum, hyper, tonic. They answer with a response and never
//! change the service's error type. They read no clock; time limits are those of tokio, and `now` comes from an
//! [`admit::TimeSource`]. They log to `tracing`: what a client is told under a [`CorrelationId`], with its cause.

mod admission;
mod admitted;
mod body;
mod budgets;
mod correlation;
mod detached;
mod fields;
mod idempotency;
mod idempotent;
mod json_pointer;
mod lease;
mod ledger;
mod limiter;
mod observe;
mod problem;
mod purse;
mod quota;
mod read_ahead;
mod rejected;
mod rejection;
mod replay;
mod request_key;
mod runs;
mod settling;

pub mod client_ip;
pub mod problem_type;
pub mod run;
pub mod strict_json;

pub use admitted::Admitted;
pub use body::Body;
pub use budgets::{BudgetLayer, Budgets, ResponseFuture};
pub use correlation::{CorrelationId, X_CORRELATION_ID};
pub use fields::Dialect;
pub use idempotency::{Idempotency, IdempotencyLayer};
pub use idempotent::{FingerprintOf, IdempotencyPolicy, Idempotent, IfMissing, KeyFrom};
pub use json_pointer::{JsonPointer, JsonPointerError};
pub use limiter::{Admission, Limiter};
pub use observe::{Event, Keyed, Observer};
pub use problem::{PROBLEM_JSON, Problem};
pub use quota::{BudgetPolicy, OnUnavailable, Quota, whole_seconds};
pub use read_ahead::{Held, ReadAhead, ReadBody};
pub use rejected::Rejected;
pub use rejection::{Refused, Rejection, Render};
pub use replay::record_of;
pub use request_key::IDEMPOTENCY_KEY;
#[doc(inline)]
pub use run::{Answer, NotRecorded, Run};
pub use runs::Runs;
