//! Binds the ingest limiter to a store of buckets, and the sink to a file.

mod limiter;
mod ndjson_file;

pub use limiter::{INGEST_DOMAIN, INGEST_NODE, StoreIngestLimiter};
pub use ndjson_file::NdjsonFile;
