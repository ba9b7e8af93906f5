//! A server process, its readiness and its signals.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::Home;

/// A machine under load may take long to start a server; one that hangs must not hang the tests.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A server that stops may have much to put in order.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A server that runs as a child of the test process. Killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts a server that writes a line with `ready` to its standard error when it can be used. All that it writes is
    /// kept in the file `log` of its home.
    ///
    /// # Errors
    /// If it ends before it is ready (with the end of its log), or is not ready within a minute.
    pub fn start(home: &Home, mut command: Command, ready: &'static str) -> anyhow::Result<Self> {
        let path = home.path().join("log");
        let log = File::options().create(true).append(true).open(&path)?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        home.record(&[child.id()])?;
        let stderr = child.stderr.take().context("the server has no standard error")?;
        let (sender, receiver) = mpsc::channel();
        let log = std::thread::spawn(move || keep_log(stderr, log, ready, &sender));
        let mut daemon = Self { child, log: Some(log) };
        if receiver.recv_timeout(START_LIMIT).is_err() {
            daemon.end(Signal::KILL)?;
            let log = fs::read_to_string(path).unwrap_or_default();
            let end: Vec<&str> = log.lines().rev().take(12).collect();
            bail!("the test server did not start:\n{}", end.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
        Ok(daemon)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends `signal` and waits until the server is gone. One that does not go is killed: a shell that puts a command into the
    /// background may have it, and all that it starts, ignore signals.
    ///
    /// # Errors
    /// If the signal cannot be sent.
    pub fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_none() {
            self.resume()?;
            let id = self.child.id();
            send(id, signal)?;
            std::thread::scope(|scope| {
                let (gone, is_gone) = mpsc::channel();
                let child = &mut self.child;
                let waits = scope.spawn(move || {
                    let status = child.wait();
                    let _ = gone.send(()); // Nobody may wait any more.
                    status
                });
                if is_gone.recv_timeout(STOP_LIMIT).is_err() {
                    send(id, Signal::KILL)?;
                }
                waits.join().map_err(|_| anyhow::anyhow!("the wait for the server panicked"))??;
                anyhow::Ok(())
            })?;
        }
        if let Some(log) = self.log.take() {
            let _ = log.join();
        }
        Ok(())
    }

    /// Stops the server and its children where they are, as a machine that hangs would. The watchdog is told of them.
    ///
    /// # Errors
    /// If a signal cannot be sent.
    pub fn pause(&self, home: &Home) -> anyhow::Result<()> {
        send(self.child.id(), Signal::STOP)?; // First, so that no child is born meanwhile.
        let pids = self.pids()?;
        home.record(&pids)?;
        pids.into_iter().try_for_each(|pid| send(pid, Signal::STOP))
    }

    /// Lets the server go on after [`Daemon::pause`].
    ///
    /// # Errors
    /// If a signal cannot be sent.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.pids()?.into_iter().rev().try_for_each(|pid| send(pid, Signal::CONT))
    }

    /// The server's process and its children.
    fn pids(&self) -> anyhow::Result<Vec<u32>> {
        let id = self.child.id();
        let output = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output();
        let listing = match output {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(_) => proc_listing()?,
        };
        let children = listing.lines().filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse::<u32>);
            let (pid, parent) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
            (parent == id).then_some(pid)
        });
        Ok(std::iter::once(id).chain(children).collect())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.end(Signal::QUIT);
    }
}

/// `pid ppid` of every process, on a Linux without `ps`.
fn proc_listing() -> anyhow::Result<String> {
    let mut listing = String::new();
    for entry in fs::read_dir("/proc").context("neither ps nor /proc lists the processes")? {
        let Ok(stat) = fs::read_to_string(entry?.path().join("stat")) else { continue };
        // "PID (NAME) STATE PPID …", and the name may hold anything.
        let (Some(pid), Some((_, rest))) = (stat.split(' ').next(), stat.rsplit_once(") ")) else { continue };
        listing += &format!("{pid} {}\n", rest.split(' ').nth(1).unwrap_or_default());
    }
    Ok(listing)
}

fn send(pid: u32, signal: Signal) -> anyhow::Result<()> {
    let pid = Pid::from_raw(pid.try_into()?).context("no process has the id 0")?;
    match kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error).context("cannot signal a test server"),
    }
}

fn keep_log(stderr: ChildStderr, mut log: File, ready: &str, sender: &Sender<()>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        let _ = writeln!(log, "{line}");
        if line.contains(ready) {
            let _ = sender.send(()); // Nobody listens any more after the start.
        }
    }
}
