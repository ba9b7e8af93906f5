//! Listing and deleting buckets in memory.

use admit::{Bucket, Key, Scope, Unavailable};

use super::MemoryStore;

impl MemoryStore {
    pub(crate) fn buckets(
        &self,
        scope: &Scope,
        after: Option<Key>,
        limit: usize,
    ) -> Result<Vec<(Key, Bucket)>, Unavailable> {
        self.state.buckets.listed(&self.numbered, scope, after, limit)
    }

    pub(crate) fn delete_bucket(&self, scope: &Scope, key: Key) -> Result<bool, Unavailable> {
        self.state.buckets.delete(&self.numbered, scope, key)
    }
}
