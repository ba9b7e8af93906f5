//! The `fleet-api` program: reads its variables and its file, and serves until it is told to stop.

use std::io::Write;
use std::process::ExitCode;

use admit::{Causes, TimeSource};
use admit_listen::Limits;
use admit_store::maintenance::Maintenance;
use fleet_api::app::App;
use fleet_api::fleet_file::{Description, FleetFileError};
use fleet_api::observability::persistence::NdjsonFile;

use fleet_api::settings::{Settings, SettingsError, VARIABLES};
use fleet_api::storage::{self, StorageError};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("FLEET_FILE ({path}) does not describe a fleet")]
    File {
        path: String,
        #[source]
        cause: FleetFileError,
    },
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("FLEET_INGEST_FILE ({path}) cannot be opened")]
    IngestFile {
        path: String,
        #[source]
        cause: std::io::Error,
    },
    #[error("FLEET_LISTEN ({address}) cannot be listened on")]
    Listen {
        address: String,
        #[source]
        cause: std::io::Error,
    },
    #[error("the system's signals cannot be received")]
    Signals(#[source] std::io::Error),
}

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("--help" | "-h") => {
            return print(&help());
        }
        Some("--version" | "-V") => {
            return print(concat!("fleet-api ", env!("CARGO_PKG_VERSION"), "\n"));
        }
        Some(other) => {
            eprintln!("fleet-api takes no argument {other:?}; see fleet-api --help");
            return ExitCode::from(2);
        }
    }
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fleet-api does not start: {}", Causes(&error));
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn start() -> Result<(), StartError> {
    let settings =
        Settings::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))?;
    let lines = tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(settings.log.clone()).with(lines).init();
    warn_of_unknown_variables();
    let description = Description::read(&settings.file)
        .map_err(|cause| StartError::File { path: settings.file.display().to_string(), cause })?;
    let sink = NdjsonFile::open(&settings.ingest_file, settings.ingest_file_max_bytes).map_err(|cause| {
        StartError::IngestFile { path: settings.ingest_file.display().to_string(), cause }
    })?;
    let store = storage::open(&settings.database_url).await?;
    let unlistened = |cause| StartError::Listen { address: settings.listen.to_string(), cause };
    let listener = TcpListener::bind(settings.listen).await.map_err(unlistened)?;
    let address = listener.local_addr().map_err(unlistened)?;

    let shutdown = CancellationToken::new();
    stop_on_signals(&shutdown)?;
    let app = App::new(&settings, description, store.clone(), sink, TimeSource::Store);
    let sweeping = tokio::spawn(Maintenance::new(store).run(shutdown.clone().cancelled_owned()));
    tracing::info!(%address, database = ?settings.database_url, "listening");
    let (router, drain) = app.into_parts();
    admit_listen::serve(listener, router, Limits::default(), shutdown).await;
    drain.finish().await;
    let _ = sweeping.await; // A sweep that panicked has said so.
    tracing::info!("stopped");
    Ok(())
}

/// A misspelt name would leave a default in force that nobody asked for.
fn warn_of_unknown_variables() {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("FLEET_") && !VARIABLES.iter().any(|variable| variable.name == name) {
            tracing::warn!(%name, "there is no such variable; see fleet-api --help");
        }
    }
}

fn stop_on_signals(shutdown: &CancellationToken) -> Result<(), StartError> {
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let mut signals = signal(kind).map_err(StartError::Signals)?;
        let shutdown = shutdown.clone();
        tokio::spawn(async move {
            signals.recv().await;
            tracing::info!("stopping: requests that run may end");
            shutdown.cancel();
        });
    }
    Ok(())
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE, // Nobody reads.
    }
}

fn help() -> String {
    let mut text = "Serves the fleet API. Everything is set by environment variables:\n".to_owned();
    for variable in VARIABLES {
        let default =
            variable.default.map_or("must be set".to_owned(), |default| format!("default {default}"));
        text += &format!(
            "\n{}\n    {}\n    Takes {}; {default}.\n",
            variable.name, variable.what, variable.takes
        );
    }
    text + "\nSIGTERM and SIGINT stop it; requests that run may end, and accepted telemetry is written.\n"
}
