//! The `admit` program.

use std::process::Command;

use admit_testbed::{Daemon, Home, Port};
use anyhow::Result;

use super::release;

const POLICY: &str = include_str!("policy.toml");

/// `admit serve` with its memory store. It is gone when this is dropped.
pub(crate) struct Admit {
    // Before `home`: the program ends before its directory goes.
    _daemon: Daemon,
    _home: Home,
    listen: Port,
    _admin: Port,
}

impl Admit {
    /// The decision service.
    pub(crate) fn decisions() -> Result<Self> {
        Self::start(&[])
    }

    /// The gateway in front of the service on a loopback port.
    pub(crate) fn gateway(service: u16) -> Result<Self> {
        Self::start(&["--upstream", &format!("http://127.0.0.1:{service}")])
    }

    fn start(args: &[&str]) -> Result<Self> {
        let home = Home::new("bench")?;
        std::fs::write(home.path().join("admit.toml"), POLICY)?;
        let (listen, admin) = (Port::free()?, Port::free()?);
        let mut command = Command::new(release("admit")?);
        command.current_dir(home.path()).args(["serve", "admit.toml", "--store", "memory:"]).args(args);
        command.args(["--listen", &format!("127.0.0.1:{}", listen.number())]);
        command.args(["--admin", &format!("127.0.0.1:{}", admin.number())]);
        let daemon = Daemon::start(&home, command, "\"listening\"")?;
        Ok(Self { _daemon: daemon, _home: home, listen, _admin: admin })
    }

    pub(crate) fn port(&self) -> u16 {
        self.listen.number()
    }
}
