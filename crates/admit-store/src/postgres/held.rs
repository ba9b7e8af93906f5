//! Buckets whose rows somebody holds, as in a session that was left open.
//!
//! A statement that waits for such a row keeps all takes behind it waiting, for as long as a statement waits for locks. So what
//! has been waited for in vain is looked for, and statements pass it over until its row is free. Takes and admissions know of each
//! other's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use admit::{Clock, Key, MonotonicClock, Scope, Take, Timestamp};
use tokio_postgres::types::Type;

use super::batch::columns;
use super::database::{CallError, Database, Param, get};

/// The most buckets that are known to be held. With more all are forgotten, and waited for once again.
const MAX_HELD: usize = 1_024;

/// After so long a look waits for a bucket again. A row that several processes lock in turn may never be free at the instant we
/// look; without a wait we would never get it.
const KEPT: Duration = Duration::from_secs(10);

/// How long a look waits for a bucket: longer than others who take hold a row.
const WAIT_MS: i32 = 200;

/// How long it waits for all of them. The rest is looked at without a wait.
const PATIENCE_MS: i32 = 1_000;

/// Buckets that somebody holds.
pub(super) type Buckets = BTreeSet<(Scope, Key)>;

/// Buckets that were found to be held, and when a look waited for them.
pub(super) struct Held {
    database: Database,
    statement: String,
    clock: MonotonicClock,
    since: Mutex<BTreeMap<(Scope, Key), Timestamp>>,
}

impl Held {
    pub(super) fn new(database: Database) -> Self {
        let statement = format!("SELECT {}.held_buckets($1, $2, $3, $4)", database.schema());
        Self { database, statement, clock: MonotonicClock::start(), since: Mutex::default() }
    }

    /// Those buckets of the takes that were held, and are still.
    pub(super) async fn still<'t>(&self, takes: impl Iterator<Item = &'t Take>) -> Buckets {
        let (mut known, mut wait_ms) = (Buckets::new(), 0);
        {
            let since = self.lock();
            if since.is_empty() {
                return known;
            }
            let now = self.clock.now();
            for line in takes.flat_map(Take::lines) {
                let bucket = (line.scope.clone(), line.key);
                if let Some(since) = since.get(&bucket) {
                    if now.since(*since) >= KEPT {
                        wait_ms = WAIT_MS;
                    }
                    known.insert(bucket);
                }
            }
        }
        match known.is_empty() {
            true => known,
            // What cannot be told is passed over as before.
            false => self.look(&known, wait_ms).await.unwrap_or(known),
        }
    }

    /// Those buckets of the takes that are held, after a statement waited in vain for something.
    pub(super) async fn found<'t>(&self, takes: impl Iterator<Item = &'t Take>) -> Buckets {
        let all = takes.flat_map(Take::lines).map(|line| (line.scope.clone(), line.key)).collect();
        self.look(&all, WAIT_MS).await.unwrap_or_default()
    }

    async fn look(&self, buckets: &Buckets, wait_ms: i32) -> Result<Buckets, CallError> {
        let (scopes, keys) = columns(buckets.iter().map(|(scope, key)| (scope, *key)));
        let params: [Param<'_>; 4] = [
            (&scopes, Type::TEXT_ARRAY),
            (&keys, Type::UUID_ARRAY),
            (&wait_ms, Type::INT4),
            (&PATIENCE_MS, Type::INT4),
        ];
        let row = self.database.row(&self.statement, &params).await?;
        let numbers: BTreeSet<i32> = get::<Vec<i32>>(&row, 0)?.into_iter().collect();
        let (held, free): (Vec<_>, Vec<_>) =
            (1..).zip(buckets).partition(|(number, _)| numbers.contains(number));
        let now = self.clock.now();
        let mut since = self.lock();
        for (_, bucket) in free {
            since.remove(bucket);
        }
        if since.len().saturating_add(held.len()) > MAX_HELD {
            since.clear();
        }
        for (_, bucket) in &held {
            let looked = since.entry((*bucket).clone()).or_insert(now);
            if wait_ms > 0 {
                *looked = now;
            }
        }
        Ok(held.into_iter().map(|(_, bucket)| bucket.clone()).collect())
    }

    /// Nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Scope, Key), Timestamp>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
