//! Telemetry ingest: nodes send batches of metrics, log lines and audit events, which a consumer writes out.
//!
//! A batch passes its gates in this order: authentication, node id, encoding, sent-at, size on the wire, the two byte
//! budgets, inflation, records, the buffer. Whatever was not paid for is not inflated.

mod batch;
mod buffer;
mod inflate;
mod limiter;
mod record;

pub mod http;
pub mod persistence;

pub use batch::{BatchError, BatchKind, BatchLimits, Origin, Rendered, render};
pub use buffer::{Buffer, BufferError, Consumer, TelemetrySink};
pub use inflate::{Encoding, InflateError, inflate};
pub use limiter::{IngestLimitError, IngestLimiter, IngestRefused};
