//! How it is told: as a table, a picture and JSON.

pub(crate) mod document;
pub(crate) mod json;
pub(crate) mod picture;
pub(crate) mod table;
pub(crate) mod value;
