//! `admit status`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use axum::body::Body;
use clap::Args;
use http::{Request, Uri};
use http_body_util::{BodyExt, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use miette::{IntoDiagnostic, WrapErr, miette};
use rustls::ClientConfig;
use tokio::time::timeout;

use super::Output;
use super::place::block_on;
use super::style::Style;
use crate::{admin, roots};

/// How long the program may take to answer. It gives its store two seconds.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// The longest answer, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// What a program that cannot be asked ends this one with.
const UNREACHABLE: u8 = 2;

/// Ask a running program how it stands.
///
/// Ends with 0 if it is healthy, 1 if it is not (the store does not answer, or the policy on the disk is not in force), and 2
/// if it cannot be asked.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  admit status\n  admit status --admin http://10.0.0.7:8082 --json\n  \
                        admit status --admin https://admit.internal:8082 --ca internal-ca.pem")]
pub(super) struct Status {
    /// Where its admin listener is.
    #[arg(
        long,
        value_name = "URL",
        env = "ADMIT_ADMIN",
        hide_env_values = true,
        default_value = "http://127.0.0.1:8082"
    )]
    admin: Uri,
    /// Roots that sign its certificate, beside those of the system, in PEM.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The certificate to show it, where it asks its clients for one, in PEM.
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// The key of that certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
}

impl Status {
    pub(super) fn run(self, output: Output) -> ExitCode {
        match block_on(self.ask()) {
            Ok(status) => {
                output.tell(&status, |style| text(&status, style));
                if status.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(report) => {
                eprintln!("{report:?}"); // Which is how miette draws it.
                ExitCode::from(UNREACHABLE)
            }
        }
    }

    async fn ask(&self) -> miette::Result<admin::Status> {
        let admin = &self.admin;
        if admin.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(miette!(
                "--admin is a URL with a user or a password in it, and an admin listener is sent none"
            ));
        }
        let failed = || format!("the program at {} cannot be asked", admin.to_string().trim_end_matches('/'));
        let url = format!("{}/status", admin.to_string().trim_end_matches('/'));
        let request = Request::get(url).body(Body::empty()).into_diagnostic().wrap_err_with(failed)?;
        let tls = self.tls().wrap_err_with(failed)?;
        let answer = async {
            let connector =
                HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
            let client = Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
            let response = client.request(request).await.map_err(|error| {
                miette!(
                    help = "is it running there? --admin URL names another place",
                    "{}",
                    admit::Causes(&error)
                )
            })?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_BYTES).collect().await.map_err(|error| miette!("{error}"))?;
            match head.status.is_success() {
                true => serde_json::from_slice(&body.to_bytes()).into_diagnostic(),
                false => Err(miette!("it answers {}: is this an admin listener of admit?", head.status)),
            }
        };
        let answered = timeout(TIME_LIMIT, answer).await;
        let answered = answered.unwrap_or_else(|_| Err(miette!("it gives no answer within {TIME_LIMIT:?}")));
        answered.wrap_err_with(failed)
    }

    fn tls(&self) -> miette::Result<ClientConfig> {
        let ca = self.ca.as_deref();
        let is_encrypted = self.admin.scheme_str() == Some("https");
        let roots = if is_encrypted { roots::with_system(ca) } else { roots::alone(ca) };
        let client = roots::client(roots.into_diagnostic()?).into_diagnostic()?;
        match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let (chain, key) = admit_listen::identity(certificate, key).into_diagnostic()?;
                client.with_client_auth_cert(chain, key).into_diagnostic()
            }
            _ => Ok(client.with_no_client_auth()),
        }
    }
}

fn text(status: &admin::Status, style: Style) -> String {
    let admin::Status { policy, store, decisions, .. } = status;
    let mut text = match status.healthy {
        true => style.good("healthy"),
        false => style.bad("not healthy"),
    };
    let mut line = |name: &str, what: String| {
        text += &format!("\n  {} {what}", style.dim(&format!("{name:<9}")));
    };
    let up = jiff::SignedDuration::from_secs(i64::try_from(status.uptime_seconds).unwrap_or(i64::MAX));
    line("program", format!("admit {}, up {up:#}", status.version));
    let counts = format!("budgets {}, routes {}, keys {}", policy.budgets, policy.routes, policy.keys);
    line("policy", format!("{} ({counts})", policy.from));
    line("since", policy.since.clone());
    line("store", format!("{}: {}", store.url, store.health));
    let mut counted = format!("{} granted, {} refused", decisions.granted, decisions.refused);
    for (count, what) in [
        (decisions.unavailable, "unavailable"),
        (decisions.admitted_unavailable, "admitted while unavailable"),
    ] {
        if count > 0 {
            counted += &format!(", {count} {what}");
        }
    }
    line("decisions", counted);
    text.push('\n');
    if let Some(advice) = &store.advice {
        text += &format!("\n{}\n", style.bad(advice));
    }
    if let Some(error) = &policy.error {
        text += &format!("\n{}\n{error}\n", style.bad("what is on the disk is not in force:"));
    }
    text
}
