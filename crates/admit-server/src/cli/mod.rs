//! The command line.

mod banner;
mod buckets;
mod check;
mod completions;
mod confirm;
mod key;
mod keys;
mod keys_file;
mod migrate;
mod open_files;
mod place;
mod schema;
mod serve;
mod status;
mod style;
mod sweep;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};
use serde::Serialize;

use style::Style;

/// Decides which API requests may run: rate budgets that hold exactly, and retries that run once.
///
/// Without a command it serves the starter policy, as `admit serve` does.
#[derive(Debug, Parser)]
#[command(name = "admit", version, max_term_width = 100)]
#[command(after_help = "Start with:\n  admit                                  a decision service to try\n  \
                        admit serve --print-default            a policy file to write your own from\n  \
                        admit check admit.toml                 what is wrong with it\n  \
                        admit serve admit.toml                 serve by it\n  \
                        admit serve --upstream http://localhost:3000 --limit 100/hour --by ip")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Print JSON instead of text for people.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Serve>), // Boxed, for it is far larger than the others.
    Check(check::Check),
    Status(status::Status),
    #[command(subcommand)]
    Buckets(buckets::Buckets),
    #[command(subcommand)]
    Keys(keys::Keys),
    Migrate(migrate::Migrate),
    Sweep(sweep::Sweep),
    Key(key::Key),
    Schema(schema::Schema),
    Completions(completions::Completions),
}

/// What is printed on standard output.
#[derive(Clone, Copy, Debug)]
struct Output {
    json: bool,
    style: Style,
}

impl Output {
    /// As JSON if that is wanted, else the text for people.
    fn tell(self, value: &impl Serialize, text: impl FnOnce(Style) -> String) {
        match self.json {
            true => print(&format!("{:#}\n", serde_json::json!(value))),
            false => print(&text(self.style)),
        }
    }
}

/// Runs the program with the arguments of the process.
pub fn run() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| unquoted(error).exit());
    let command = cli.command.unwrap_or_else(|| Command::Serve(Box::default()));
    let output = Output { json: cli.json, style: Style::of_stdout() };
    let done = match command {
        Command::Serve(serve) => serve.run(),
        Command::Check(check) => check.run(output),
        Command::Status(status) => return status.run(output),
        Command::Buckets(buckets) => buckets.run(output),
        Command::Keys(keys) => keys.run(output),
        Command::Migrate(migrate) => migrate.run(output),
        Command::Sweep(sweep) => sweep.run(output),
        Command::Key(key) => key.run(output),
        Command::Schema(schema) => schema.run(),
        Command::Completions(completions) => completions.run::<Cli>(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}"); // Which is how miette draws it.
            ExitCode::FAILURE
        }
    }
}

/// Without the value that is wrong, if it may hold a password: one of a URL, or of the variable in its place.
fn unquoted(mut error: clap::Error) -> clap::Error {
    let (argument, value) = (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue));
    let is_store = argument.is_some_and(|argument| argument.to_string().contains("--store"));
    if let Some(value) = value
        && (is_store || value.to_string().contains('@'))
    {
        error.insert(ContextKind::InvalidValue, ContextValue::String("***".to_owned()));
    }
    error
}

/// Prints to standard output. Who has stopped reading is not told that.
fn print(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(text.as_bytes());
}
