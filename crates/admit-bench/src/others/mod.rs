//! Ways to hold a bucket to a budget outside of this process that have no bar.

mod rate_limiter_flexible;
mod redis;

pub(crate) use rate_limiter_flexible::start as rate_limiter_flexible;
pub(crate) use redis::Redis;
