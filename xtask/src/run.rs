//! Steps: other programs, run one after another, with a line before each.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Says what is done next, on standard error.
pub(crate) fn say(what: impl AsRef<str>) {
    eprintln!("xtask: {}", what.as_ref());
}

/// Prints the command line and runs it. It reads no input, so it cannot wait at a prompt.
pub(crate) fn step(command: &mut Command) -> Result<()> {
    let line = command_line(command);
    say(&line);
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start {line}"))?;
    if !status.success() {
        bail!("{line}: {status}");
    }
    Ok(())
}

/// What a command prints on standard output; nothing if it cannot be run or fails.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Whether a command can be run and succeeds.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    output(command).is_some()
}

/// Whether a command succeeds within a time limit, after which it is killed. What it prints is dropped.
pub(crate) fn succeeds_within(limit: Duration, command: &mut Command) -> bool {
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = spawned else { return false };
    let Some(mut stderr) = child.stderr.take() else { return false };
    let (send, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = stderr.read_to_end(&mut Vec::new()); // Ends with the program.
        let _ = send.send(());
    });
    if ended.recv_timeout(limit).is_err() {
        let _ = child.kill();
    }
    child.wait().is_ok_and(|status| status.success())
}

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// `cargo ARGS` in the root of the workspace.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(args).current_dir(root());
    cargo
}

fn command_line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut line = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}
