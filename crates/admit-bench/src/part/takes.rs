//! A process that takes from one bucket on PostgreSQL.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::load::callers::{Until, ask};
use crate::load::limiter::{keys, open, tight};
use crate::postgres::store;

/// One load.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Names the bucket.
    pub(crate) salt: u64,
    /// What the bucket holds; nothing if it never refuses.
    pub(crate) burst: Option<u64>,
    /// How long it takes; 0 if it goes by requests.
    pub(crate) milliseconds: u64,
    pub(crate) requests: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) per_second: f64,
    pub(crate) granted: u64,
}

pub(super) fn run(url: &str, callers: usize) -> Result<()> {
    let runtime = Runtime::new()?;
    let store = runtime.block_on(store(url))?;
    super::serve(|order: Order| {
        let budget = order.burst.map_or_else(open, tight)?;
        let until = match order.milliseconds {
            0 => Until::Requests(order.requests),
            milliseconds => Until::Time(Duration::from_millis(milliseconds)),
        };
        let done = runtime.block_on(ask(&store, callers, &keys(order.salt, 1), budget, 0, until))?;
        Ok(Answer { per_second: done.per_second(), granted: done.granted })
    })
}
