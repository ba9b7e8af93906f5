//! A token bucket in a script on Redis, which writes nothing to a disk.

use std::process::Command;
use std::sync::Arc;

use admit::{Budget, Key};
use admit_testbed::{Daemon, Home};
use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;

use crate::load::limiter::Limiter;

/// A server. It is gone when this is dropped.
pub(crate) struct Redis {
    _daemon: Daemon,
    home: Home,
}

impl Redis {
    pub(crate) fn start() -> Result<Self> {
        let home = Home::new("redis")?;
        let mut command = Command::new("sh"); // It logs to its standard output.
        command.args(["-c", r#"exec redis-server "$@" >&2"#, "redis-server", "--port", "0"]);
        command.args(["--unixsocket", "socket", "--save", "", "--appendonly", "no"]).current_dir(home.path());
        let daemon =
            Daemon::start(&home, command, "ready to accept connections").context("no redis-server")?;
        Ok(Self { _daemon: daemon, home })
    }

    /// A connection that all callers share: what they ask at once is on its way at once.
    pub(crate) async fn script(self) -> Result<Script> {
        let socket = format!("redis+unix://{}/socket", self.home.path().display());
        let connection = redis::Client::open(socket)?.get_multiplexed_async_connection().await?;
        let script = Arc::new(redis::Script::new(include_str!("token_bucket.lua")));
        Ok(Script { connection, script, _server: Arc::new(self) })
    }
}

/// Takes by the script.
#[derive(Clone)]
pub(crate) struct Script {
    connection: MultiplexedConnection,
    script: Arc<redis::Script>,
    _server: Arc<Redis>,
}

impl Limiter for Script {
    async fn take(&self, key: Key, budget: Budget) -> Result<bool> {
        let mut call = self.script.key(key.to_string());
        call.arg(budget.rate().tokens_per_second()).arg(budget.burst().tokens());
        let granted: u8 = call.invoke_async(&mut self.connection.clone()).await?;
        Ok(granted == 1)
    }
}
