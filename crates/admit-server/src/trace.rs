//! What is logged, and in which form.

use std::io::IsTerminal;

use tracing_subscriber::filter::{FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// The target of spans that are for traces alone. Where no traces are sent they cost nothing, and no log shows them.
pub const TARGET: &str = "admit::trace";

/// Logs to standard error: for people on a terminal, else as JSON, one object a line.
pub fn start() {
    let logged = filter_fn(|metadata| metadata.target() != TARGET).and(LevelFilter::INFO);
    let log = match std::io::stderr().is_terminal() {
        true => fmt::layer().with_writer(std::io::stderr).with_filter(logged).boxed(),
        false => fmt::layer().json().with_writer(std::io::stderr).with_filter(logged).boxed(),
    };
    tracing_subscriber::registry().with(log).init();
}
