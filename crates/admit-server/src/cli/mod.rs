//! The command line.

mod banner;
mod check;
mod key;
mod serve;
mod style;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Decides which API requests may run: rate budgets that hold exactly, and retries that run once.
#[derive(Debug, Parser)]
#[command(name = "admit", version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve: a gateway in front of a service, held to a policy.
    Serve(Box<serve::Serve>),
    /// Check a policy file, and tell everything that is wrong with it.
    Check(check::Check),
    /// Print the key that the buckets of a text have in the store: a UUID.
    Key(key::Key),
}

/// Runs the program with the arguments of the process.
pub fn run() -> ExitCode {
    let command = Cli::parse().command.unwrap_or_else(|| Command::Serve(Box::default()));
    let done = match command {
        Command::Serve(serve) => serve.run(),
        Command::Check(check) => check.run(),
        Command::Key(key) => key.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}"); // Which is how miette draws it.
            ExitCode::FAILURE
        }
    }
}

/// Prints to standard output. Who has stopped reading is not told that.
fn print(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(text.as_bytes());
}
