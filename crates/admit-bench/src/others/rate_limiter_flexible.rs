//! rate-limiter-flexible, a library for Node.js, on PostgreSQL.

use std::process::Command;

use admit_testbed::{Postgres, tools_dir};
use anyhow::{Result, ensure};

use crate::part::Part;

const SCRIPT: &str = include_str!("rate_limiter_flexible.js");

/// Callers in a process of their own.
pub(crate) fn start(server: &Postgres, callers: usize) -> Result<Part> {
    let modules = tools_dir().join("node/node_modules");
    ensure!(modules.join("rate-limiter-flexible").is_dir(), "rate-limiter-flexible is not installed");
    let mut node = Command::new("node");
    node.env("NODE_PATH", modules.canonicalize()?).args(["--eval", SCRIPT, "--"]);
    node.arg(server.home().path()).args([server.port().to_string(), callers.to_string()]);
    Part::spawn(node)
}
