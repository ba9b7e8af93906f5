//! The sweep of idle buckets: it walks the table, some pages at a time.

use std::sync::atomic::{AtomicI64, Ordering};

use admit::Now;
use tokio_postgres::types::Type;

use super::database::{CallError, Database, Param, get, moment};

/// How many pages of the table one statement looks at: some 3,000 buckets, which cost less than a millisecond to look at and
/// some milliseconds to delete.
const PAGES: i32 = 32;

/// The statement, with the schema in place, and how far the last sweep came.
#[derive(Debug)]
pub(super) struct Sweep {
    statement: String,
    /// Where the next sweep begins: where this one stopped, if it does not come to its end.
    begin: AtomicI64,
}

impl Sweep {
    pub(super) fn new(schema: &str) -> Self {
        let statement = format!("SELECT deleted, next_page FROM {schema}.delete_idle_pages($1, $2, $3, $4)");
        Self { statement, begin: AtomicI64::new(0) }
    }

    /// Walks the table from where the last one stopped to its end, and then what lies before that. Tells how many buckets were
    /// deleted.
    pub(super) async fn over_all(
        &self,
        database: &Database,
        idle_micros: i64,
        now: Now,
    ) -> Result<u64, CallError> {
        let began = self.begin.load(Ordering::Relaxed);
        let (mut deleted, mut page, mut is_behind) = (0, began, true);
        loop {
            // Pages where two sweeps stop, one after the other, shall not keep the third from those behind them.
            let is_first = is_behind && page == began;
            self.begin.store(if is_first { page + i64::from(PAGES) } else { page }, Ordering::Relaxed);
            let params: [Param<'_>; 4] = [
                (&idle_micros, Type::INT8),
                (&moment(now), Type::TIMESTAMPTZ),
                (&page, Type::INT8),
                (&PAGES, Type::INT4),
            ];
            let row = database.row(&self.statement, &params).await?;
            deleted += get::<i64>(&row, 0)?.unsigned_abs();
            match get::<Option<i64>>(&row, 1)? {
                Some(next) if is_behind || next < began => page = next,
                None if is_behind && began > 0 => (page, is_behind) = (0, false),
                Some(_) | None => break,
            }
        }
        self.begin.store(0, Ordering::Relaxed);
        Ok(deleted)
    }
}
