//! Tower layers that hold HTTP requests to rate budgets and run each idempotency key once.

mod admission;
mod body;
mod budgets;
mod correlation;
mod detached;
mod fields;
mod idempotency;
mod idempotent;
mod ledger;
mod limiter;
mod observe;
mod problem;
mod quota;
mod rejection;
mod replay;
mod request_key;
mod runs;
mod strict_json;

pub mod client_ip;
pub mod run;

pub use body::Body;
pub use budgets::{BudgetLayer, Budgets, ResponseFuture};
pub use correlation::{CorrelationId, X_CORRELATION_ID};
pub use fields::Dialect;
pub use idempotency::{Idempotency, IdempotencyLayer};
pub use idempotent::{FingerprintOf, IdempotencyPolicy, Idempotent, IfMissing, KeyFrom};
pub use limiter::{Admission, Admitted, Limiter};
pub use observe::{Event, Keyed, Observer};
pub use problem::{PROBLEM_JSON, Problem};
pub use quota::{BudgetPolicy, OnUnavailable, Quota};
pub use rejection::{QUOTA_EXCEEDED, Refused, Rejection, Render, TEMPORARY_REDUCED_CAPACITY};
#[doc(inline)]
pub use run::{Answer, NotRecorded, Run};
