//! Admit side by side with its peers: `cargo xtask bench`.
//!
//! Each case runs Admit and its peers in turns on one machine; what counts is their ratio, and beside it what was
//! admitted of what was allowed. A bar that is missed is shown; only an accuracy that is not as promised is a failure.
//!
//! Three things apart: *what* is measured stands in `cases`, *how* in `load` and `rounds`, how it is *told* in `report`.

mod case;
mod cases;
mod load;
mod machine;
mod others;
mod part;
mod peers;
mod postgres;
mod progress;
mod report;
mod rounds;
mod servers;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use mimalloc::MiMalloc;
use tokio::runtime::Runtime;

use machine::Machine;
use progress::Progress;
use report::{document, json, picture, table};
use rounds::{Outcome, Plan};

/// Admit's own program has it, so its peers in Rust have it too.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Admit side by side with its peers.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Args)]
struct Options {
    /// Only look at accuracy: one short round of each case that can be set up quickly.
    #[arg(long)]
    quick: bool,
    /// Only the cases whose name contains this; may be given more than once.
    #[arg(long)]
    only: Vec<String>,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// A part of a case, in a process of its own.
    #[command(hide = true)]
    Part {
        #[command(subcommand)]
        task: part::Task,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Command::Part { task }) => part::run(task),
        None => bench(&cli.options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(options: &Options) -> Result<()> {
    let is_named =
        |name: &str| options.only.is_empty() || options.only.iter().any(|part| name.contains(part));
    let cases =
        cases::all().into_iter().filter(|case| is_named(&case.name) && (case.quick || !options.quick));
    let cases: Vec<_> = cases.collect();
    if cases.is_empty() {
        bail!("no case has such a name; they are: {}", names());
    }
    let plan = if options.quick { Plan::QUICK } else { Plan::FULL };
    let machine = Machine::look()?;
    let runtime = Runtime::new()?;
    let progress = Progress::start(cases.len());
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        eprintln!("bench: {}", progress.after(i));
        let say = |what: &str| eprintln!("bench: {} of {}, {}: {what}", i + 1, cases.len(), case.name);
        let outcome = rounds::measure(case, plan, runtime.handle(), say);
        for row in table::rows(&outcome) {
            say(&row[1..].join(" | "));
        }
        outcomes.push(outcome);
    }

    eprintln!("bench: {}", progress.after(cases.len()));

    let mut out = std::io::stdout().lock();
    let table = table::markdown(&outcomes);
    if options.json {
        writeln!(out, "{:#}", json::json(&machine, &outcomes))?;
    } else {
        writeln!(out, "{}\n\n{table}", machine.told())?;
    }
    let failures: Vec<String> = outcomes.iter().filter_map(Outcome::failure).collect();
    if !failures.is_empty() {
        bail!("{}; the document is left as it was", failures.join("; "));
    }
    if !options.quick && options.only.is_empty() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        picture::draw(&docs.join("benchmarks.svg"), &outcomes)?;
        let picture = "![How many times as good as each peer Admit is](benchmarks.svg)";
        document::update(&docs.join("benchmarks.md"), &format!("{}\n\n{table}\n{picture}", machine.told()))?;
    }
    Ok(())
}

fn names() -> String {
    cases::all().iter().map(|case| case.name.as_str()).collect::<Vec<_>>().join("; ")
}
