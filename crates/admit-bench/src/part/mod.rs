//! Parts of a case that run in a process of their own: this program again, with `part` as its first argument.

pub(crate) mod buckets;
mod envoy;
mod hello;
pub(crate) mod takes;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

/// What a process of its own does.
#[derive(Subcommand)]
pub(crate) enum Task {
    /// Takes from a bucket on PostgreSQL, as it is told line by line.
    Takes { url: String, callers: usize },
    /// Holds buckets in memory, and takes from them.
    Buckets { whose: Whose, count: u64 },
    /// An HTTP service behind a layer.
    Hello { layer: Layer },
    /// A rate limit service for Envoy whose every answer is OK.
    Envoy,
}

/// Who holds the buckets.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Whose {
    Admit,
    Governor,
}

/// What stands before the service.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Layer {
    None,
    Admit,
    /// Without fields that tell clients their limits.
    AdmitSilent,
    TowerGovernor,
}

/// Does it, in this process.
pub(crate) fn run(task: Task) -> Result<()> {
    match task {
        Task::Takes { url, callers } => takes::run(&url, callers),
        Task::Buckets { whose, count } => buckets::run(whose, count),
        Task::Hello { layer } => hello::run(layer),
        Task::Envoy => envoy::run(),
    }
}

/// A process that is told orders and answers each, in lines of JSON. It ends when this is dropped, or its parent ends:
/// its input ends then.
pub(crate) struct Part {
    child: Child,
    orders: Mutex<Option<ChildStdin>>,
    answers: Mutex<BufReader<ChildStdout>>,
    port: u16,
}

/// What a process says first.
#[derive(Debug, Serialize, Deserialize)]
struct Ready {
    /// Where it listens, if it does.
    port: u16,
}

impl Part {
    /// Starts this program and waits until it is ready.
    pub(crate) fn start(task: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("part").args(task);
        Self::spawn(command)
    }

    /// Starts another program that does as this one would.
    pub(crate) fn spawn(mut command: Command) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let orders = Mutex::new(child.stdin.take());
        let answers = child.stdout.take().context("a process without output")?;
        let mut part = Self { child, orders, answers: Mutex::new(BufReader::new(answers)), port: 0 };
        part.port = part.answer::<Ready>()?.port;
        Ok(part)
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn tell(&self, order: &impl Serialize) -> Result<()> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let orders = orders.as_mut().context("a process without input")?;
        writeln!(orders, "{}", serde_json::to_string(order)?)?;
        Ok(orders.flush()?)
    }

    pub(crate) fn answer<A: DeserializeOwned>(&self) -> Result<A> {
        let mut line = String::new();
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).read_line(&mut line)?;
        serde_json::from_str(&line).context("a process ended, or answered what it was not asked")
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        drop(self.orders.lock().unwrap_or_else(PoisonError::into_inner).take());
        let _ = self.child.wait();
    }
}

/// Says that this process is ready, then answers orders until there are no more.
fn serve<O: DeserializeOwned, A: Serialize>(mut answer: impl FnMut(O) -> Result<A>) -> Result<()> {
    ready(0)?;
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        writeln!(out, "{}", serde_json::to_string(&answer(serde_json::from_str(&line?)?)?)?)?;
    }
    Ok(())
}

/// Runs what `server` makes of a listener on a loopback port, until there is no more input.
fn listen<F>(server: impl FnOnce(tokio::net::TcpListener) -> F) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let runtime = Runtime::new()?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    let port = listener.local_addr()?.port();
    let server = {
        let _inside = runtime.enter();
        server(listener)
    };
    let server = runtime.spawn(server);
    ready(port)?;
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    server.abort();
    Ok(())
}

fn ready(port: u16) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(&Ready { port })?)?;
    Ok(out.flush()?)
}
