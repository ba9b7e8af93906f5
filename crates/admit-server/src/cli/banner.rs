//! What a person reads when the program has started.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::style::Style;
use crate::authorize::AUTHORIZE;
use crate::gateway::Gateway;
use crate::policy::Server;
use crate::source::{Origin, Source};

/// What is listened on, and lines to try, where the policy is one of this program's own making and they are known to work.
pub(super) fn banner(
    source: &Source,
    server: &Server,
    gateway: Option<&Gateway>,
    address: SocketAddr,
    admin: SocketAddr,
    style: Style,
) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{} {}", style.bold("admit"), env!("CARGO_PKG_VERSION")); // A String takes everything.
    let mut line = |name: &str, what: String| {
        let _ = writeln!(text, "  {} {what}", style.dim(&format!("{name:<9}")));
    };
    line("policy", source.name());
    line("store", server.store.to_string());
    let scheme = |tls: &Option<_>| if tls.is_some() { "https" } else { "http" };
    let main = format!("{}://{address}", scheme(&server.tls));
    let path = match gateway {
        Some(gateway) => {
            line("gateway", format!("{main} to {gateway}"));
            "/"
        }
        None => {
            line("decisions", format!("{main} ({AUTHORIZE}, /v1/take, /openapi.json, gRPC)"));
            AUTHORIZE
        }
    };
    line("admin", format!("{}://{admin} (/status, /metrics, /healthz, /readyz)", scheme(&server.admin_tls)));
    if matches!(source.origin, Origin::Starter) {
        let _ = writeln!(text, "\nTry:");
        for (command, comment) in tries(address, path, admin) {
            let _ = writeln!(text, "  {}\n  {command}", style.dim(&format!("# {comment}")));
        }
    }
    let _ = writeln!(text, "\n{}", style.dim("Ctrl-C ends it; `admit --help` tells what else there is."));
    text
}

/// Within 80 columns. The starter policy encrypts nothing, so that curl needs no scheme.
fn tries(address: SocketAddr, path: &str, admin: SocketAddr) -> [(String, &'static str); 3] {
    [
        (format!("curl -i {address}{path}"), "May a request run? 200, and what is left."),
        (
            format!("curl -s -o /dev/null -w '%{{http_code}} ' '{address}{path}?[1-25]'"),
            "25 at once: 200 as often as the budget has it, then 429.",
        ),
        (format!("curl -s {admin}/metrics | grep admit_decisions"), "What was decided."),
    ]
}
