//! Listing and deleting buckets in a file.

use admit::{Bucket, Key, Scope, Unavailable};

use super::{SqliteStore, buckets};

impl SqliteStore {
    /// What was made when the file was opened; nothing if all was there.
    pub fn migrated(&self) -> Option<&str> {
        Some(&*self.migrated).filter(|migrated| !migrated.is_empty())
    }

    pub(crate) async fn buckets(
        &self,
        scope: &Scope,
        after: Option<Key>,
        limit: usize,
    ) -> Result<Vec<(Key, Bucket)>, Unavailable> {
        let scope = scope.clone();
        self.writer.run(move |connection| buckets::listed(connection, &scope, after, limit)).await
    }

    pub(crate) async fn delete_bucket(&self, scope: &Scope, key: Key) -> Result<bool, Unavailable> {
        let (scope, refusals) = (scope.clone(), self.takes.refusals());
        let delete = move |connection: &_| {
            refusals.forget(&scope, key);
            buckets::delete(connection, &scope, key)
        };
        self.writer.run(delete).await
    }
}
