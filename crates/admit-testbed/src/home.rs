//! The directory of one server, and the watchdog that outlives its test.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{fs, io};

use anyhow::Context;
use tempfile::TempDir;

/// Waits until the test process is gone, then kills what is left and removes the directory. The first process is told to
/// quit at once (PostgreSQL takes its children with it), and to terminate, as not all know to quit; all are continued
/// first, in case they were paused.
const WATCHDOG: &str = r#"
cat >/dev/null
[ -f "$1/pids" ] && {
    for pid in $(cat "$1/pids"); do kill -CONT "$pid"; done
    kill -QUIT "$(head -n 1 "$1/pids")"
    kill -TERM "$(head -n 1 "$1/pids")"
}
rm -rf "$1"
"#;

/// A directory for one server's data and sockets. Its path is short: that of a socket may have 107 bytes.
///
/// A watchdog process holds the read end of a pipe. When the test process ends, however it ends, the pipe closes, and the
/// watchdog kills the server that [`Home::record`] told it of.
#[derive(Debug)]
pub struct Home {
    dir: TempDir,
    watchdog: Child,
}

impl Home {
    /// A new directory that the servers' user owns, named `admit-KIND-…`.
    ///
    /// # Errors
    /// If the directory or the watchdog cannot be made.
    pub fn new(kind: &str) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("admit-{kind}-"))
            .rand_bytes(6)
            .tempdir_in(short_temp_dir())
            .context("cannot make a directory for a test server")?;
        if let Some(id) = server_user() {
            std::os::unix::fs::chown(dir.path(), Some(id), Some(id))?;
        }
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "sh"])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0) // Signals to the test's group must not reach it.
            .spawn()
            .context("cannot start the watchdog")?;
        Ok(Self { dir, watchdog })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Tells the watchdog which processes run; the first is the parent of the others. None: nothing is to be killed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn record(&self, pids: &[u32]) -> io::Result<()> {
        let file = self.path().join("pids");
        if pids.is_empty() {
            return match fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        fs::write(file, pids.iter().map(|pid| format!("{pid}\n")).collect::<String>())
    }

    /// `program`, to be run in this directory as the servers' user.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = as_server_user(program.as_ref());
        command.current_dir(self.path());
        command
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait(); // It removes the directory; what it left, `TempDir` removes.
    }
}

/// The uid and gid for servers that refuse to run as root, if this is root: nobody's.
pub(crate) fn server_user() -> Option<u32> {
    const NOBODY: u32 = 65_534;
    rustix::process::geteuid().is_root().then_some(NOBODY)
}

pub(crate) fn as_server_user(program: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some(id) = server_user() {
        command.uid(id).gid(id);
    }
    command
}

/// `TMPDIR`, unless sockets below it would have too long a name.
pub(crate) fn short_temp_dir() -> PathBuf {
    const LONGEST: usize = 60;
    let dir = std::env::temp_dir();
    if dir.as_os_str().len() <= LONGEST { dir } else { PathBuf::from("/tmp") }
}
