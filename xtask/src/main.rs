//! The project's own commands: `cargo xtask test`, `cargo xtask ci`, `cargo xtask bench` and `cargo xtask load`.
//!
//! They install what they lack and say so, never wait at a prompt, and leave servers that already run alone.

mod bench;
mod ci;
mod load;
mod packages;
mod run;
mod test;
mod tools;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// The project's own commands.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Cli {
    #[command(flatten)]
    Command(Command),
}

#[derive(Subcommand)]
enum Command {
    /// Run all tests of the workspace, with servers of their own, in parallel.
    ///
    /// Finds PostgreSQL 14 or newer, PgBouncer and the proxies that the guide has configurations for, or installs them with
    /// apt-get or brew (as root, or with sudo where it asks for no password). Runs the doctests, then everything else with cargo-nextest, whose summary comes last.
    /// Without cargo-nextest, builds it once into target/tools; where that fails, uses cargo test. Likewise schemathesis,
    /// with pip; where that fails, says so and goes on.
    Test(Options),
    /// Check what must hold for every commit: format, lints, docs, licences, spelling, all tests, then what the benches admit.
    ///
    /// Without cargo-deny or typos, puts them once into target/tools. The database of security advisories counts where
    /// it can be fetched; where it cannot, that is said and the rest goes on.
    Ci(Options),
    /// Measure Admit side by side with its peers, and write the table and the picture of docs/benchmarks.md.
    ///
    /// Takes under half an hour on 2 cores with all that it builds. Installs with apt-get or brew what makes load, and builds
    /// the peers into target/tools; one that cannot be had is left out, and that is said. A ratio below its bar is shown; it
    /// fails only if Admit did not admit what it has to.
    Bench(bench::Options),
    /// Put the release build of `admit` under load, case by case, and say where it had errors or its memory grew.
    ///
    /// Needs wrk and h2load (Debian: wrk, nghttp2-client).
    Load(load::Options),
}

#[derive(Args)]
struct Options {
    /// Install nothing: fail, and name what is missing.
    #[arg(long)]
    no_install: bool,
    /// For the test runner, as in `cargo xtask test -- -p admit`. The doctests are then left out.
    #[arg(last = true)]
    runner_args: Vec<String>,
}

fn main() -> ExitCode {
    let Cli::Command(command) = Cli::parse();
    let done = match &command {
        Command::Test(options) => test::run(options),
        Command::Ci(options) => ci::run(options),
        Command::Bench(options) => bench::run(options),
        Command::Load(options) => load::run(options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
