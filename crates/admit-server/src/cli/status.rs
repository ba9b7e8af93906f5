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
use tokio::time::timeout;

use super::Output;
use super::place::block_on;
use super::style::Style;
use crate::admin;
use crate::gateway::roots::client_config;
use crate::policy::{Upstream, UpstreamLimits, Upstreams};

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
#[command(after_help = "Examples:\n  admit status\n  admit status --admin http://10.0.0.7:8082 --json")]
pub(super) struct Status {
    /// Where its admin listener is.
    #[arg(long, value_name = "URL", env = "ADMIT_ADMIN", default_value = "http://127.0.0.1:8082")]
    admin: Uri,
    /// Roots that sign the certificate of an https:// one, beside those of the system.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

impl Status {
    pub(super) fn run(self, output: Output) -> ExitCode {
        match block_on(ask(&self.admin, self.ca)) {
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
}

async fn ask(admin: &Uri, ca: Option<PathBuf>) -> miette::Result<admin::Status> {
    let failed = || format!("the program at {} cannot be asked", admin.to_string().trim_end_matches('/'));
    let url = format!("{}/status", admin.to_string().trim_end_matches('/'));
    let request = Request::get(url).body(Body::empty()).into_diagnostic().wrap_err_with(failed)?;
    let answer = async {
        let server = Upstreams { urls: vec![Upstream(admin.clone())], ca, limits: UpstreamLimits::default() };
        let tls = client_config(&server).into_diagnostic()?;
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
