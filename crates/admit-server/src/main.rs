//! The `admit` program.

use std::process::ExitCode;

use admit_server::cli;

fn main() -> ExitCode {
    cli::run()
}
