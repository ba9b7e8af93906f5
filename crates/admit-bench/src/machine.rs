//! On what it was measured.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use admit_testbed::{Postgres, Programs, Proxy};
use anyhow::{Context, Result};
use serde::Serialize;

use crate::peers;
use crate::postgres;

/// The facts that the figures depend on.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) date: String,
    /// Admit's, with `-dirty` if something was changed since.
    pub(crate) commit: String,
    pub(crate) cores: usize,
    pub(crate) cpu: String,
    /// Whether the processor says that a hypervisor runs it.
    pub(crate) is_virtual: bool,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    /// Of PostgreSQL's data.
    pub(crate) file_system: String,
    /// The time in which PostgreSQL's directory flushes a page, the median of some.
    pub(crate) fsync_microseconds: f64,
    pub(crate) rust: String,
    pub(crate) postgres: String,
    /// Those of its settings that tell what a commit costs.
    pub(crate) settings: Vec<String>,
    /// The peers, and what makes load.
    pub(crate) programs: Vec<String>,
}

/// What decides how much a commit writes and waits for.
const SETTINGS: [&str; 5] =
    ["fsync", "synchronous_commit", "wal_level", "wal_sync_method", "full_page_writes"];

impl Machine {
    /// Those of this one.
    pub(crate) fn look() -> Result<Self> {
        let server = postgres::server()?;
        let show = |setting: &&str| Ok(format!("{setting} {}", server.psql(&format!("SHOW {setting}"))?));
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let unknown = || "unknown".to_owned();
        let memory = field(&file("/proc/meminfo"), "MemTotal");
        let kib = memory.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        let cpu = file("/proc/cpuinfo");
        let is_virtual =
            field(&cpu, "flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
        let here = env!("CARGO_MANIFEST_DIR");
        let describe = ["-C", here, "describe", "--always", "--dirty", "--exclude=*"];
        Ok(Self {
            date: first_line("date", &["+%F"]).unwrap_or_else(unknown),
            commit: first_line("git", &describe).unwrap_or_else(unknown),
            cores: std::thread::available_parallelism()?.get(),
            cpu: field(&cpu, "model name").unwrap_or_else(unknown),
            is_virtual,
            memory_gib: kib.unwrap_or_default().div_ceil(1 << 20),
            kernel: first_line("uname", &["-sr"]).unwrap_or_else(unknown),
            file_system: file_system(&server).unwrap_or_else(unknown),
            fsync_microseconds: fsync(server.home().path())?.as_secs_f64() * 1e6,
            rust: first_line("rustc", &["--version"]).unwrap_or_else(unknown),
            postgres: Programs::find().context("no PostgreSQL")?.postgres.version,
            settings: SETTINGS.iter().map(show).collect::<Result<_>>()?,
            programs: programs(),
        })
    }

    /// In a few sentences.
    pub(crate) fn told(&self) -> String {
        let Self { date, commit, cores, cpu, memory_gib, kernel, file_system, rust, postgres, .. } = self;
        let kind = if self.is_virtual { "virtual cores" } else { "cores" };
        let (settings, programs) = (self.settings.join(", "), self.programs.join(", "));
        let fsync = self.fsync_microseconds;
        format!(
            "Admit {commit}, measured on {date} on {cores} {kind} ({cpu}), {memory_gib} GiB of memory, {kernel}, {rust}. \
             PostgreSQL {postgres} ({settings}) on {file_system}, where an fsync takes {fsync:.0} µs. Beside it: {programs}."
        )
    }
}

/// Programs that tell their version, and libraries.
fn programs() -> Vec<String> {
    let proxies = [(Proxy::Nginx, "-v"), (Proxy::HaProxy, "-v")];
    let proxies = proxies.map(|(proxy, how)| version(proxy.name(), &first_line(proxy.find().ok()?, &[how])?));
    let others = ["redis-server", "node", "wrk", "h2load"];
    let others = others.map(|program| version(program, &first_line(program, &["--version"])?));
    proxies.into_iter().chain(others).flatten().chain(peers::versions()).collect()
}

/// As in `nginx 1.22.1`, of a line with `nginx/1.22.1` somewhere.
fn version(program: &str, line: &str) -> Option<String> {
    let is_version = |word: &&str| word.contains('.') && word.contains(|c: char| c.is_ascii_digit());
    let word = line.split_whitespace().find(is_version)?.rsplit(['/', '=']).next()?;
    Some(format!("{program} {}", word.trim_start_matches('v')))
}

/// The first line that a program writes, whatever it thinks of its arguments.
fn first_line(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&text).lines().find(|line| !line.is_empty())?.trim().to_owned())
}

fn file_system(server: &Postgres) -> Option<String> {
    let mut df = Command::new("df");
    let output = df.args(["--output=fstype"]).arg(server.home().path()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.lines().nth(1)?.trim().to_owned())
}

/// How long it takes to flush a page that was written anew.
#[allow(clippy::disallowed_methods)] // A bench reads the clock.
fn fsync(directory: &Path) -> Result<Duration> {
    const TIMES: usize = 51;
    let mut file = tempfile::tempfile_in(directory)?;
    let mut times = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        file.write_all(&[0; 8_192])?;
        let started = Instant::now();
        file.sync_data()?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    Ok(times[TIMES / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_as_programs_write_them() {
        let of = |line| version("it", line).unwrap();
        let lines = [
            "nginx version: nginx/1.22.1",
            "HAProxy version 2.6.12-1 2026/10/17 - https://x",
            "Redis server v=7.0.15",
            "v20.2.1",
        ];
        assert_eq!(lines.map(of), ["it 1.22.1", "it 2.6.12-1", "it 7.0.15", "it 20.2.1"]);
    }
}
