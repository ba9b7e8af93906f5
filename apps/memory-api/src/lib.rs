//! The memory API: batches of notes and skills become durable jobs, are made searchable, and are found again.
//!
//! [`Service::start`] runs all of it, on SQLite or PostgreSQL. Each API key has budgets by endpoint ([`limits`]); a batch
//! that is sent again gets the first answer, because the job and the record of its answer are committed together
//! ([`storage`]).

pub mod batch;
pub mod config;
pub mod cursor;
mod http;
pub mod keys;
pub mod limits;
pub mod metrics;
pub mod params;
mod service;
pub mod storage;
mod trim;
pub mod words;
mod worker;

pub use service::{Service, StartError};
