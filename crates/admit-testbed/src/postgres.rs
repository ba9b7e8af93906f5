//! PostgreSQL.

use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, ensure};
use rustix::process::Signal;

use crate::postgres_files::{copy, template};
use crate::{Daemon, Home, Port, programs};

const READY: &str = "database system is ready to accept connections";

/// A PostgreSQL server with a cluster of its own, on a unix socket and a loopback port. The superuser is `postgres`.
#[derive(Debug)]
pub struct Postgres {
    // Before `home`: the server ends before its directory goes.
    daemon: Mutex<Option<Daemon>>,
    home: Home,
    port: Port,
    bin: PathBuf,
    settings: Vec<String>,
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Transactions are rolled back, clients cut off, a checkpoint is made.
    Fast,
    /// As in a crash: the next start recovers from the log.
    Immediate,
}

impl Postgres {
    /// A server that flushes each commit to disk, as in production.
    ///
    /// # Errors
    /// If PostgreSQL is not installed (with what to do), or does not start.
    pub fn start() -> anyhow::Result<Self> {
        Self::with_settings([])
    }

    /// A server that flushes nothing: for tests that ask neither what survives a crash nor what a flush costs.
    ///
    /// # Errors
    /// As [`Postgres::start`].
    pub fn fast() -> anyhow::Result<Self> {
        Self::with_settings(["fsync=off", "synchronous_commit=off", "full_page_writes=off"])
    }

    /// A server with settings of its own, each as in `max_connections=200`.
    ///
    /// # Errors
    /// As [`Postgres::start`].
    pub fn with_settings<'a>(settings: impl IntoIterator<Item = &'a str>) -> anyhow::Result<Self> {
        let programs = programs::postgres()?;
        let home = Home::new("pg")?;
        copy(&template(&programs)?, &home.path().join("data"))?;
        let settings = settings.into_iter().map(str::to_owned).collect();
        let (daemon, port, bin) = (Mutex::new(None), Port::free()?, programs.dir);
        let postgres = Self { daemon, home, port, bin, settings };
        postgres.start_again()?;
        Ok(postgres)
    }

    /// Starts the server after [`Postgres::stop`], with the same data on the same port.
    ///
    /// # Errors
    /// If it runs already, or does not start.
    pub fn start_again(&self) -> anyhow::Result<()> {
        let mut daemon = self.daemon();
        ensure!(daemon.is_none(), "the test server runs already");
        let mut command = self.home.command(self.bin.join("postgres"));
        command.arg("-D").arg(self.home.path().join("data"));
        let mut set = |setting: &str| {
            command.args(["-c", setting]);
        };
        set(&format!("port={}", self.port.number()));
        set(&format!("unix_socket_directories={}", self.home.path().display()));
        set("listen_addresses=127.0.0.1");
        set("lc_messages=C"); // The readiness line is waited for.
        set("shared_buffers=32MB");
        set("max_wal_size=128MB");
        set("wal_level=minimal");
        set("max_wal_senders=0");
        self.settings.iter().for_each(|setting| set(setting));
        *daemon = Some(Daemon::start(&self.home, command, READY)?);
        Ok(())
    }

    /// Stops the server and waits until it is gone. Its data and its port stay.
    ///
    /// # Errors
    /// If it cannot be told to.
    pub fn stop(&self, shutdown: Shutdown) -> anyhow::Result<()> {
        let Some(mut daemon) = self.daemon().take() else { return Ok(()) };
        daemon.end(match shutdown {
            Shutdown::Fast => Signal::INT,
            Shutdown::Immediate => Signal::QUIT,
        })?;
        Ok(self.home.record(&[])?)
    }

    /// Stops all its processes where they are: connections stay open, and nothing answers.
    ///
    /// # Errors
    /// If it does not run.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.daemon().as_ref().context("the test server does not run")?.pause(&self.home)
    }

    /// Lets all its processes go on.
    ///
    /// # Errors
    /// If it does not run.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.daemon().as_ref().context("the test server does not run")?.resume()
    }

    /// The URL of its database `postgres` on the unix socket.
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    /// The URL of a database on the unix socket.
    pub fn url_for(&self, database: &str) -> String {
        let dir = self.home.path().display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{dir}:{}/{database}", self.port.number())
    }

    /// The URL of a database on the loopback port.
    pub fn tcp_url_for(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port.number())
    }

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The directory of its unix socket, its data (`data`) and its log (`log`).
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Runs SQL in the database `postgres` and returns what it prints: a row a line, columns apart by `|`.
    ///
    /// # Errors
    /// If a statement fails; those after it are not run.
    pub fn psql(&self, sql: &str) -> anyhow::Result<String> {
        self.psql_in("postgres", sql)
    }

    /// [`Postgres::psql`] in another database.
    ///
    /// # Errors
    /// As [`Postgres::psql`].
    pub fn psql_in(&self, database: &str, sql: &str) -> anyhow::Result<String> {
        self.psql_at(&self.url_for(database), sql)
    }

    /// [`Postgres::psql`] at another URL, as that of a pooler.
    ///
    /// # Errors
    /// As [`Postgres::psql`].
    pub fn psql_at(&self, url: &str, sql: &str) -> anyhow::Result<String> {
        let mut psql = std::process::Command::new(self.bin.join("psql"))
            .args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1"])
            .arg(url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run psql")?;
        // From its input and not `-c`, which would make one transaction of many statements.
        psql.stdin.take().context("psql has no input")?.write_all(sql.as_bytes())?;
        let output = psql.wait_with_output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn daemon(&self) -> MutexGuard<'_, Option<Daemon>> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
