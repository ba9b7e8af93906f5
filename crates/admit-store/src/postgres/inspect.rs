//! What the conformance suite reads.

#![allow(clippy::expect_used)] // For tests.

use std::time::SystemTime;

use admit::idempotency::{Record, RecordKey};
use admit::{Bucket, Key, Scope};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::database::{get, timestamp};
use super::records::record;
use crate::conformance::Inspect;

impl Inspect for PostgresStore {
    async fn bucket(&self, scope: &Scope, key: &Key) -> Option<Bucket> {
        let sql = format!(
            "SELECT tokens, refilled_at FROM (VALUES (1)) AS one \
             LEFT JOIN {}.rate_budgets ON scope = $1 AND bucket_key = $2",
            self.database.schema()
        );
        let key = Uuid::from_bytes(*key.as_bytes());
        let row = self.database.row(&sql, &[(&scope.as_str(), Type::TEXT), (&key, Type::UUID)]).await;
        let row = row.expect("the bucket can be read");
        let (tokens, refilled_at): (Option<f64>, Option<SystemTime>) =
            get(&row, 0).and_then(|tokens| Ok((tokens, get(&row, 1)?))).expect("the columns are read");
        let refilled_at = timestamp(refilled_at?).expect("the moment is in range");
        Some(Bucket { tokens: tokens?, refilled_at })
    }

    async fn record(&self, key: &RecordKey) -> Option<Record> {
        let sql = format!(
            "SELECT fingerprint, fence, lease_until, expires_at, status, header_names, header_values, body \
             FROM (VALUES (1)) AS one LEFT JOIN {}.idempotency_records ON record_key = $1",
            self.database.schema()
        );
        let row = self.database.row(&sql, &[(&key.as_bytes().as_slice(), Type::BYTEA)]).await;
        record(&row.expect("the record can be read"), 0).expect("the columns are read")
    }
}
