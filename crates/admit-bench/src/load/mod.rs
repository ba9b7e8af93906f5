//! How it is measured: what makes load, and turns it into a [`Side`](crate::case::Side).

pub(crate) mod beside;
pub(crate) mod callers;
pub(crate) mod drained;
pub(crate) mod envoy;
pub(crate) mod h2load;
pub(crate) mod limiter;
pub(crate) mod processes;
pub(crate) mod threads;
pub(crate) mod web;
pub(crate) mod wrk;
