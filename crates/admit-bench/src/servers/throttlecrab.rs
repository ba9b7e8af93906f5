//! throttlecrab's server, with its defaults.

use std::process::Command;

use admit_testbed::{Daemon, Home, Port};
use anyhow::Result;

use super::{listening, tool};

/// It is gone when this is dropped.
pub(crate) struct Throttlecrab {
    _daemon: Daemon,
    _home: Home,
    port: Port,
}

impl Throttlecrab {
    pub(crate) fn start() -> Result<Self> {
        let home = Home::new("bench")?;
        let port = Port::free()?;
        let mut command = Command::new("sh"); // It logs to its standard output.
        command
            .args(["-c", r#"exec "$0" "$@" >&2"#])
            .arg(tool("throttlecrab-server")?)
            .current_dir(home.path());
        command.args(["--http", "--http-host", "127.0.0.1", "--http-port", &port.number().to_string()]);
        let daemon = Daemon::start(&home, command, "HTTP server listening on")?;
        listening(port.number())?;
        Ok(Self { _daemon: daemon, _home: home, port })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }
}
