//! `admit serve`.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use admit::Budget;
use admit_listen::{Limits, Workers, serve_tls};
use admit_store::AnyStore;
use admit_store::maintenance::Maintenance;
use clap::Args;
use miette::{Context, IntoDiagnostic, miette};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::banner::banner;
use super::open_files;
use super::print;
use super::style::Style;
use crate::admin;
use crate::authorize::AUTHORIZE;
use crate::measured::Measured;
use crate::metrics::Metrics;
use crate::policy::{KeyPart, STARTER, Server, SourceError, StoreUrl, Upstream};
use crate::reload::Running;
use crate::source::{Origin, Overrides, Read, Source};

/// Serve as a gateway, or as a decision service for other proxies.
///
/// Either a policy file, or a policy made of flags; with neither, the starter policy. The policy's files are read anew when
/// they change and at SIGHUP. SIGINT and SIGTERM let the requests that run end.
#[derive(Debug, Default, Args)]
#[command(after_help = "Examples:\n  admit serve\n  admit serve admit.toml\n  \
                        admit serve --upstream http://localhost:3000 --limit 100/hour --by header:x-api-key")]
pub(super) struct Serve {
    /// The policy file. Without one, and without flags, the starter policy is in force.
    file: Option<PathBuf>,
    /// The service to stand in front of, as in http://localhost:3000. Without one this is a decision service, which other
    /// proxies ask at /authorize.
    #[arg(long, value_name = "URL")]
    upstream: Option<Upstream>,
    /// A budget for every request: 100/hour, or "100/hour burst 20". May be given several times; all hold.
    #[arg(long = "limit", value_name = "RATE", conflicts_with = "file")]
    limits: Vec<Budget>,
    /// Whose budget it is: ip, header:NAME, query:NAME or const:TEXT. Without it, ip.
    #[arg(long, value_name = "SOURCE", value_parser = by, requires = "limits", conflicts_with = "file")]
    by: Option<KeyPart>,
    /// Where the gateway or the decision service listens, in place of what the policy says.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where to tell metrics and health, in place of what the policy says.
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// Where to keep buckets and records: memory:, sqlite:PATH or postgres://…, in place of what the policy says.
    #[arg(long, value_name = "URL", env = "ADMIT_STORE", hide_env_values = true)]
    store: Option<StoreUrl>,
    /// Print the starter policy, and end.
    #[arg(long)]
    print_default: bool,
}

impl Serve {
    pub(super) fn run(self) -> miette::Result<()> {
        if self.print_default {
            print(STARTER);
            return Ok(());
        }
        let source = self.source();
        let read = source.read();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.into_diagnostic().wrap_err("the runtime cannot be started")?;
        let tracing = runtime.block_on(async { crate::trace::start() });
        let served = runtime.block_on(serve(source, read));
        drop(tracing); // Sends the last traces, for which the runtime has to be there.
        served
    }

    fn source(self) -> Source {
        let origin = match self.file {
            Some(file) => Origin::File(file),
            None if self.limits.is_empty() => Origin::Starter,
            None => Origin::Limits(self.limits, self.by.unwrap_or(KeyPart::Ip)),
        };
        let overrides =
            Overrides { upstream: self.upstream, listen: self.listen, admin: self.admin, store: self.store };
        Source { origin, overrides }
    }
}

/// What a request has where there is no policy file: neither known API keys nor routes with names.
fn by(text: &str) -> Result<KeyPart, String> {
    const FORMS: &str = "ip, header:NAME, query:NAME or const:TEXT";
    match text.parse().map_err(|error: SourceError| format!("{error}; here it is {FORMS}"))? {
        part @ (KeyPart::Ip | KeyPart::Header(_) | KeyPart::Query(_) | KeyPart::Constant(_)) => Ok(part),
        part => Err(format!("{part} takes a policy file; here it is {FORMS}")),
    }
}

async fn listen(address: SocketAddr, flag: &str) -> miette::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        miette!(
            help = format!("name another with {flag} ADDRESS"),
            "{address} cannot be listened on: {error}"
        )
    })
}

/// Decisions are there for everybody who reaches them, unless the policy names tokens.
fn warn_if_open(server: &Server, address: SocketAddr) {
    let decisions = &server.decisions;
    let are_served = server.upstream.urls.is_empty() || decisions.prefix.is_some();
    if are_served && decisions.tokens.is_empty() && !address.ip().is_loopback() {
        tracing::warn!(%address, "everybody who reaches this address may spend budgets; set decision_tokens");
    }
}

/// Returns when the time that requests have after the shutdown began is over.
async fn over(time: Duration, shutdown: CancellationToken) {
    shutdown.cancelled().await;
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

async fn serve(source: Source, read: Read) -> miette::Result<()> {
    let Ok((policy, _)) = &read.policy else { return read.policy.map(drop) };
    let (server, rules) = (policy.server.clone(), policy.rules().into_diagnostic()?);
    open_files::allow_for(server.connections);
    // Before the store, so that a second start on the same machine changes nothing there.
    let listener = listen(server.listen, "--listen").await?;
    let admin_listener = listen(server.admin, "--admin").await?;
    let store = AnyStore::open(server.store.reveal(), rules).await.into_diagnostic();
    let store = store.wrap_err_with(|| format!("the store {} cannot be opened", server.store))?;
    let (running, reloader) = Running::start(source.clone(), read, store.clone(), Metrics::default()).await?;
    let address = listener.local_addr().into_diagnostic()?;

    let shutdown = CancellationToken::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let (mut signals, shutdown) = (signal(kind).into_diagnostic()?, shutdown.clone());
        tokio::spawn(async move {
            signals.recv().await;
            shutdown.cancel();
        });
    }
    let reloads = tokio::spawn(reloader.run(shutdown.clone()));
    let measured = Measured::new(store, running.metrics().store.clone());
    let maintenance = tokio::spawn(Maintenance::new(measured).run(shutdown.clone().cancelled_owned()));
    let admin_address = admin_listener.local_addr().into_diagnostic()?;
    let serves = match running.in_force().gateway() {
        Some(gateway) => format!("a gateway to {gateway}"),
        None => format!("decisions at http://{address}{AUTHORIZE}"),
    };
    // A person who reads both is told once.
    if !(std::io::stdout().is_terminal() && std::io::stderr().is_terminal()) {
        tracing::info!(%address, admin = %admin_address, serves, store = %server.store, "listening");
    }
    warn_if_open(&server, address);
    for warning in running.in_force().policy.warnings() {
        tracing::warn!("{warning}");
    }
    print(&banner(
        &source,
        &server,
        running.in_force().gateway(),
        address,
        admin_address,
        Style::of_stdout(),
    ));
    let admin = admin::router(running.clone());
    let certificates = running.certificates().clone();
    let (tls, limits) = (certificates.admin, Limits::default());
    let admin = tokio::spawn(serve_tls(admin_listener, admin, tls, limits, shutdown.clone(), None));
    let limits = Limits { connections: server.connections, ..Limits::default() };
    let over = AbortOnDropHandle::new(tokio::spawn(over(limits.shutdown_time, shutdown.clone())));
    // They outlive the listener: what runs under a key goes on on them.
    let workers = Workers::start().into_diagnostic().wrap_err("no threads can be started")?;
    serve_tls(listener, running.answers(), certificates.main, limits, shutdown, Some(&workers)).await;
    // What runs under a key goes on when its client has gone.
    tokio::select! {
        biased;
        () = running.idle() => {}
        _ = over => tracing::warn!("keyed requests that did not end in time are cut off"),
    }
    let _ = admin.await; // As below.
    let _ = reloads.await;
    let _ = maintenance.await; // If it panicked, it has said so.
    Ok(())
}
