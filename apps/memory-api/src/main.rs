//! Runs the memory API.
fn main() {}
