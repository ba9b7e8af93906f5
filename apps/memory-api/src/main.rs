//! The `memory-api` program: reads its variables, and serves until it is told to stop.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use admit::{Causes, TimeSource};
use memory_api::config::{Config, ConfigErrors, LogFormat, SETTINGS};
use memory_api::keys::DEVELOPMENT_KEY;
use memory_api::{Service, StartError};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

#[derive(Debug, thiserror::Error)]
enum MainError {
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the system's signals cannot be received")]
    Signals(#[source] std::io::Error),
}

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("--help" | "-h") => return print(&help()),
        Some("--version" | "-V") => return print(concat!("memory-api ", env!("CARGO_PKG_VERSION"), "\n")),
        Some(other) => {
            eprintln!("memory-api takes no argument {other:?}; see memory-api --help");
            return ExitCode::from(2);
        }
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memory-api does not start: {}", Causes(&error));
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run() -> Result<(), MainError> {
    let config = Config::from_environment()?;
    log_as(&config);
    warn_of_unknown_variables();
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate()]
        .map(|kind| signal(kind).map_err(MainError::Signals))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let (database, uses_development_key) = (format!("{:?}", config.database), config.uses_development_key);

    let service = Service::start(config, TimeSource::Store).await?;
    tracing::info!(address = %service.address(), database, "listening");
    if uses_development_key {
        tracing::warn!(key = DEVELOPMENT_KEY, "MEM_API_KEYS is not set: this development key is accepted");
    }
    let _ = futures::future::select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
    tracing::info!("stopping: what runs is finished");
    service.stop().await;
    tracing::info!("stopped");
    Ok(())
}

fn log_as(config: &Config) {
    let filter: Targets = config.log_filter.parse().unwrap_or_default(); // Was checked with the other settings.
    let format = config.log_format.unwrap_or(match std::io::stderr().is_terminal() {
        true => LogFormat::Text,
        false => LogFormat::Json,
    });
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let subscriber = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => subscriber.with(layer.with_ansi(std::io::stderr().is_terminal())).init(),
        LogFormat::Json => subscriber.with(layer.json().with_span_list(false)).init(),
    }
}

/// A misspelt name would leave a default in force that nobody asked for.
fn warn_of_unknown_variables() {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("MEM_") && !SETTINGS.iter().any(|setting| setting.name == name) {
            tracing::warn!(%name, "there is no such variable; see memory-api --help");
        }
    }
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE, // Nobody reads.
    }
}

fn help() -> String {
    let mut text = "Serves the memory API. Everything is set by environment variables:\n".to_owned();
    for setting in SETTINGS {
        text += &format!(
            "\n{}\n    {}\n    Takes {}.\n    Default: {}.\n",
            setting.name, setting.about, setting.takes, setting.default
        );
    }
    text + "\nSIGTERM and SIGINT stop it; requests that run are finished.\n"
}
