//! Listing and deleting buckets in PostgreSQL.

use std::time::SystemTime;

use admit::{Bucket, Key, Scope, Unavailable};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::database::{CallError, get, timestamp};

const LIST: &str = include_str!("sql/list_buckets.sql");
const DELETE: &str = include_str!("sql/delete_bucket.sql");

impl PostgresStore {
    /// What was made or changed when it was connected; nothing if all was there.
    pub fn migrated(&self) -> Option<&str> {
        self.migrated.as_deref()
    }

    pub(crate) async fn buckets(
        &self,
        scope: &Scope,
        after: Option<Key>,
        limit: usize,
    ) -> Result<Vec<(Key, Bucket)>, Unavailable> {
        let after = after.map(|key| Uuid::from_bytes(*key.as_bytes()));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let sql = LIST.replace("{schema}", self.database.schema());
        let params =
            [(&scope.as_str() as _, Type::TEXT), (&after as _, Type::UUID), (&limit as _, Type::INT8)];
        let row = self.database.row(&sql, &params).await?;
        let keys: Vec<Uuid> = get::<Option<_>>(&row, 0)?.unwrap_or_default();
        let tokens: Vec<f64> = get::<Option<_>>(&row, 1)?.unwrap_or_default();
        let times: Vec<SystemTime> = get::<Option<_>>(&row, 2)?.unwrap_or_default();
        let rows = keys.into_iter().zip(tokens).zip(times);
        let bucket = |((key, tokens), time): ((Uuid, f64), SystemTime)| {
            Ok((Key::from_bytes(key.into_bytes()), Bucket { tokens, refilled_at: timestamp(time)? }))
        };
        rows.map(bucket).collect::<Result<_, CallError>>().map_err(Unavailable::from)
    }

    pub(crate) async fn delete_bucket(&self, scope: &Scope, key: Key) -> Result<bool, Unavailable> {
        let sql = DELETE.replace("{schema}", self.database.schema());
        let uuid = Uuid::from_bytes(*key.as_bytes());
        let params = [(&scope.as_str() as _, Type::TEXT), (&uuid as _, Type::UUID)];
        let deleted = self.database.row(&sql, &params).await;
        self.coalescer.refusals().forget(scope, key);
        Ok(get::<i64>(&deleted?, 0)? > 0)
    }
}
