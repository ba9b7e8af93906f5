//! The `admit` program.

fn main() {}
