//! Buckets whose rows somebody holds, as in a session that was left open.
//!
//! A statement that waits for such a row keeps all takes behind it waiting, for as long as a statement waits for locks. So what
//! has been waited for in vain is looked for, and statements pass it over as long as the same transaction has it. Takes and
//! admissions know of each other's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use admit::{Key, Scope, Take};
use tokio::time::timeout;
use tokio_postgres::types::Type;

use super::batch::columns;
use super::database::{CallError, Database, Param, get, millis};
use super::{ConnectionError, PostgresConfig};

/// The most buckets that are known to be held. With more another is forgotten, and waited for once again.
const MAX_HELD: usize = 1_024;

/// How long a look may take on top of its waits: for a connection, and for a server that is busy.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// Buckets that somebody holds.
pub(super) type Buckets = BTreeSet<(Scope, Key)>;

/// Buckets that somebody holds, each with the number of his transaction; zero if that cannot be seen.
type Holders = BTreeMap<(Scope, Key), i64>;

/// Buckets that were found to be held, and by whom.
pub(super) struct Held {
    database: Database,
    statement: String,
    wait: Duration,
    known: Mutex<Holders>,
}

impl Held {
    pub(super) fn new(database: Database, config: &PostgresConfig) -> Self {
        let statement = format!("SELECT {}.held_buckets($1, $2, $3)", database.schema());
        Self { database, statement, wait: config.wait_for_held(), known: Mutex::default() }
    }

    /// Those buckets of the takes that were held, and that the same transaction has still. Does not wait.
    pub(super) async fn still<'t>(&self, takes: impl Iterator<Item = &'t Take>) -> Buckets {
        let asked: Holders = {
            let known = self.lock();
            if known.is_empty() {
                return Buckets::new();
            }
            let buckets = takes.flat_map(Take::lines).map(|line| (line.scope.clone(), line.key));
            buckets.filter_map(|bucket| known.get(&bucket).copied().map(|holder| (bucket, holder))).collect()
        };
        let mut over: Buckets = asked.keys().cloned().collect();
        // What cannot be told is passed over as before.
        let Ok(now) = self.look(&over, Duration::ZERO).await else { return over };
        // Who else has it takes from it, as far as is known.
        over.retain(|bucket| asked.get(bucket) == now.get(bucket));
        let mut known = self.lock();
        for bucket in asked.keys().filter(|bucket| !over.contains(*bucket)) {
            known.remove(bucket);
        }
        over
    }

    /// Those buckets of the takes that are held, beside those that were passed `over`, after a statement waited in vain for
    /// something.
    pub(super) async fn found<'t>(&self, takes: impl Iterator<Item = &'t Take>, over: &Buckets) -> Buckets {
        let buckets = takes.flat_map(Take::lines).map(|line| (line.scope.clone(), line.key));
        let asked = buckets.filter(|bucket| !over.contains(bucket)).collect();
        let found = self.look(&asked, self.wait).await.unwrap_or_default();
        remember(&mut self.lock(), &found);
        found.into_keys().collect()
    }

    async fn look(&self, buckets: &Buckets, wait: Duration) -> Result<Holders, CallError> {
        if buckets.is_empty() {
            return Ok(Holders::new());
        }
        let (scopes, keys) = columns(buckets.iter().map(|(scope, key)| (scope, *key)));
        let wait_ms = if wait.is_zero() { 0 } else { millis(wait) };
        let params: [Param<'_>; 3] =
            [(&scopes, Type::TEXT_ARRAY), (&keys, Type::UUID_ARRAY), (&wait_ms, Type::INT4)];
        let limit = LOOK_LIMIT + 2 * wait; // For rows, and then for one that somebody makes.
        let row = timeout(limit, self.database.row(&self.statement, &params)).await;
        let row = row.map_err(|_| ConnectionError::TimedOut(limit))??;
        let holders = get::<Vec<Option<i64>>>(&row, 0)?;
        Ok(buckets
            .iter()
            .cloned()
            .zip(holders)
            .filter_map(|(bucket, holder)| Some((bucket, holder?)))
            .collect())
    }

    /// Nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, Holders> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remember(known: &mut Holders, found: &Holders) {
    for (bucket, holder) in found {
        if known.len() >= MAX_HELD && !known.contains_key(bucket) {
            known.pop_first();
        }
        known.insert(bucket.clone(), *holder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that were known were counted twice, so that all were forgotten where more than half of the bound was held.
    #[test]
    fn what_is_found_again_displaces_nothing() {
        let held = |names: std::ops::Range<usize>| -> Holders {
            names.map(|name| ((Scope::from_static("s"), Key::of(&name.to_string())), 7)).collect()
        };
        let mut known = Holders::new();
        remember(&mut known, &held(0..1_000));
        remember(&mut known, &held(100..1_000));
        assert_eq!(known, held(0..1_000));
        remember(&mut known, &held(1_000..3_000));
        assert_eq!(known.len(), MAX_HELD);
    }
}
