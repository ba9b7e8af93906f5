//! Programs that are measured from outside.

mod admit;
mod proxies;
mod throttlecrab;

use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use admit_testbed::{target_dir, tools_dir};
use anyhow::{Context, Result, ensure};

pub(crate) use admit::Admit;
pub(crate) use proxies::{Limited, Proxied, Service};
pub(crate) use throttlecrab::Throttlecrab;

/// The program `name`, where `cargo xtask bench` puts it.
pub(crate) fn tool(name: &str) -> Result<PathBuf> {
    let program = tools_dir().join("bin").join(name);
    ensure!(program.is_file(), "{name} is not installed");
    Ok(program)
}

/// A program of this workspace, in its release build.
fn release(name: &str) -> Result<PathBuf> {
    let program = target_dir().join("release").join(name);
    ensure!(program.is_file(), "{} is not built; cargo xtask bench does that", program.display());
    Ok(program.canonicalize()?)
}

/// Waits until somebody listens on the port, which some programs do only after they said so.
#[allow(clippy::disallowed_methods)] // A connection that is refused gives nothing to wait on.
fn listening(port: u16) -> Result<()> {
    const TRIES: usize = 500;
    for _ in 0..TRIES {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    TcpStream::connect(("127.0.0.1", port)).map(drop).context("nobody listens")
}
