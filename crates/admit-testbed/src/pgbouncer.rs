//! PgBouncer, the pooler that many deployments put before PostgreSQL.

use crate::{Daemon, Home, Port, Postgres, programs};

/// A PgBouncer in transaction mode: consecutive transactions of one client may run on different connections.
#[derive(Debug)]
pub struct PgBouncer {
    _daemon: Daemon,
    home: Home,
    port: Port,
}

impl PgBouncer {
    /// A pooler before `postgres`, with a pool of 4 connections for each database.
    ///
    /// # Errors
    /// If PgBouncer is not installed, or does not start.
    pub fn start(postgres: &Postgres) -> anyhow::Result<Self> {
        let program = programs::pgbouncer()?;
        let home = Home::new("pgb")?;
        let port = Port::free()?;
        let config = home.path().join("pgbouncer.ini");
        let settings = [
            "[databases]".to_owned(),
            format!("* = host={} port={} user=postgres", postgres.home().path().display(), postgres.port()),
            "[pgbouncer]".to_owned(),
            "pool_mode = transaction".to_owned(),
            "default_pool_size = 4".to_owned(),
            "max_client_conn = 500".to_owned(),
            "auth_type = any".to_owned(),
            "listen_addr = 127.0.0.1".to_owned(),
            format!("listen_port = {}", port.number()),
            format!("unix_socket_dir = {}", home.path().display()),
        ];
        std::fs::write(&config, settings.join("\n") + "\n")?;
        let mut command = home.command(program);
        command.arg(&config);
        let daemon = Daemon::start(&home, command, "process up")?;
        Ok(Self { _daemon: daemon, home, port })
    }

    /// The URL of a database on the pooler's unix socket.
    pub fn url_for(&self, database: &str) -> String {
        let dir = self.home.path().display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{dir}:{}/{database}", self.port.number())
    }
}
