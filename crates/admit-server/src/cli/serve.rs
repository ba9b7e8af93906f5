//! `admit serve`.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use admit::Budget;
use admit_listen::{Limits, serve_tls};
use admit_store::AnyStore;
use admit_store::maintenance::Maintenance;
use clap::Args;
use miette::{Context, IntoDiagnostic, bail};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::print;
use crate::authorize::AUTHORIZE;
use crate::certificates::Certificates;
use crate::gateway::Gateway;
use crate::metrics::Metrics;
use crate::policy::{KeyPart, Keys, MAX_POLICY_BYTES, Policy, STARTER, StoreUrl, Upstream};
use crate::{Front, admin};

/// Either a policy file, or a policy made of flags.
#[derive(Debug, Default, Args)]
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
    /// Whose budget it is: ip, header:NAME, query:NAME or const:TEXT.
    #[arg(long, value_name = "SOURCE", requires = "limits", conflicts_with = "file")]
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

/// Reads a policy file, and the file of keys that it names.
pub(super) fn read_policy(file: &Path) -> miette::Result<(Policy, Keys)> {
    let mut policy = Policy::parse(&file.display().to_string(), &read(file)?)?;
    let directory = file.parent().unwrap_or(Path::new(""));
    policy.server.beside(directory);
    let keys = match &policy.server.keys {
        Some(keys) => {
            let keys = directory.join(keys);
            Keys::parse(&keys.display().to_string(), &read(&keys)?)?
        }
        None => Keys::default(),
    };
    Ok((policy, keys))
}

fn read(file: &Path) -> miette::Result<String> {
    let name = file.display().to_string();
    let size =
        std::fs::metadata(file).into_diagnostic().wrap_err_with(|| format!("{name} cannot be read"))?.len();
    if size > MAX_POLICY_BYTES as u64 {
        bail!("{name} is larger than {MAX_POLICY_BYTES} bytes");
    }
    std::fs::read_to_string(file).into_diagnostic().wrap_err_with(|| format!("{name} cannot be read"))
}

impl Serve {
    pub(super) fn run(self) -> miette::Result<()> {
        if self.print_default {
            print(STARTER);
            return Ok(());
        }
        let (policy, keys) = self.policy()?;
        match std::io::stderr().is_terminal() {
            true => tracing_subscriber::fmt().with_writer(std::io::stderr).init(),
            false => tracing_subscriber::fmt().json().with_writer(std::io::stderr).init(),
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.into_diagnostic().wrap_err("the runtime cannot be started")?.block_on(serve(policy, keys))
    }

    fn policy(self) -> miette::Result<(Policy, Keys)> {
        let (mut policy, keys) = match &self.file {
            Some(file) => read_policy(file)?,
            None if self.limits.is_empty() => {
                (Policy::parse("the starter policy", STARTER)?, Keys::default())
            }
            None => {
                let by = self.by.unwrap_or(KeyPart::Ip);
                (Policy::of_limits(&self.limits, by).into_diagnostic()?, Keys::default())
            }
        };
        let server = &mut policy.server;
        if let Some(upstream) = self.upstream {
            server.upstream.urls = vec![upstream];
        }
        server.listen = self.listen.unwrap_or(server.listen);
        server.admin = self.admin.unwrap_or(server.admin);
        server.store = self.store.unwrap_or_else(|| server.store.clone());
        Ok((policy, keys))
    }
}

async fn listen(address: SocketAddr) -> miette::Result<TcpListener> {
    let listener = TcpListener::bind(address).await.into_diagnostic();
    listener.wrap_err_with(|| format!("{address} cannot be listened on"))
}

/// Decisions are there for everybody who reaches them, unless the policy names tokens.
fn warn_if_open(policy: &Policy, address: SocketAddr) {
    let decisions = &policy.server.decisions;
    let are_served = policy.server.upstream.urls.is_empty() || decisions.prefix.is_some();
    if are_served && decisions.tokens.is_open() && !address.ip().is_loopback() {
        tracing::warn!(%address, "everybody who reaches this address may spend budgets; set decision_tokens");
    }
}

async fn serve(policy: Policy, keys: Keys) -> miette::Result<()> {
    let rules = policy.rules().into_diagnostic()?;
    let metrics = Metrics::default();
    let gateway = Gateway::new(&policy.server, metrics.clone()).into_diagnostic()?;
    let certificates = Certificates::load(&policy.server).into_diagnostic()?;
    let store = AnyStore::open(policy.server.store.reveal(), rules).await.into_diagnostic();
    let store = store.wrap_err_with(|| format!("the store {} cannot be opened", policy.server.store))?;
    let listener = listen(policy.server.listen).await?;
    let admin_listener = listen(policy.server.admin).await?;
    let address = listener.local_addr().into_diagnostic()?;

    let shutdown = CancellationToken::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let (mut signals, shutdown) = (signal(kind).into_diagnostic()?, shutdown.clone());
        tokio::spawn(async move {
            signals.recv().await;
            shutdown.cancel();
        });
    }
    let maintenance = tokio::spawn(Maintenance::new(store.clone()).run(shutdown.clone().cancelled_owned()));
    let admin_address = admin_listener.local_addr().into_diagnostic()?;
    let serves = match &gateway {
        Some(gateway) => format!("a gateway to {gateway}"),
        None => format!("decisions at http://{address}{AUTHORIZE}"),
    };
    tracing::info!(%address, admin = %admin_address, serves, store = %policy.server.store, "listening");
    warn_if_open(&policy, address);
    let metrics = Metrics::default();
    let admin = admin::router(&policy, store.clone(), metrics.clone());
    let (tls, limits) = (certificates.admin, Limits::default());
    let admin = tokio::spawn(serve_tls(admin_listener, admin, tls, limits, shutdown.clone()));
    let front = Front::new(Arc::new(policy), Arc::new(keys), store, metrics);
    let router = match gateway {
        Some(gateway) => front.in_front_of(gateway),
        None => front.decide(),
    };
    serve_tls(listener, router, certificates.main, Limits::default(), shutdown).await;
    let _ = admin.await; // As below.
    let _ = maintenance.await; // If it panicked, it has said so.
    Ok(())
}
