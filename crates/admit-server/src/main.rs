//! The `admit` program.

use std::process::ExitCode;

use admit_server::cli;
use mimalloc::MiMalloc;

/// Requests are made of many small and short-lived values, on several threads.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
