//! The memory API.

pub mod batch;
pub mod config;
pub mod cursor;
pub mod keys;
pub mod storage;
pub mod words;
