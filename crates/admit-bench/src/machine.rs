//! On what it was measured.

use std::process::Command;

use admit_testbed::Programs;
use anyhow::{Context, Result};
use serde::Serialize;

use crate::postgres;

/// The facts that the figures depend on.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) cores: usize,
    pub(crate) cpu: String,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    pub(crate) rust: String,
    pub(crate) postgres: String,
    pub(crate) fsync: String,
    pub(crate) synchronous_commit: String,
    /// The peers' programs.
    pub(crate) programs: Vec<String>,
}

impl Machine {
    /// Those of this one.
    pub(crate) fn look() -> Result<Self> {
        let server = postgres::server()?;
        let show = |setting: &str| server.psql(&format!("SHOW {setting}"));
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let unknown = || "unknown".to_owned();
        let memory = field(&file("/proc/meminfo"), "MemTotal");
        let kib = memory.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        Ok(Self {
            date: first_line("date", &["+%F"]).unwrap_or_else(unknown),
            cores: std::thread::available_parallelism()?.get(),
            cpu: field(&file("/proc/cpuinfo"), "model name").unwrap_or_else(unknown),
            memory_gib: kib.unwrap_or_default().div_ceil(1 << 20),
            kernel: first_line("uname", &["-sr"]).unwrap_or_else(unknown),
            rust: first_line("rustc", &["--version"]).unwrap_or_else(unknown),
            postgres: Programs::find().context("no PostgreSQL")?.postgres.version,
            fsync: show("fsync")?,
            synchronous_commit: show("synchronous_commit")?,
            programs: PROGRAMS.iter().filter_map(|(program, args)| first_line(program, args)).collect(),
        })
    }

    /// In a sentence or two.
    pub(crate) fn told(&self) -> String {
        let Self { date, cores, cpu, memory_gib, kernel, rust, postgres, fsync, synchronous_commit, .. } =
            self;
        let programs = self.programs.join(", ");
        format!(
            "Measured on {date} on {cores} cores ({cpu}), {memory_gib} GiB of memory, {kernel}, {rust}, PostgreSQL \
             {postgres} with `fsync` {fsync} and `synchronous_commit` {synchronous_commit}. Beside it: {programs}."
        )
    }
}

/// How programs are asked for their version.
const PROGRAMS: [(&str, &[&str]); 3] =
    [("/usr/sbin/nginx", &["-v"]), ("wrk", &["--version"]), ("h2load", &["--version"])];

/// The first line that a program writes, whatever it thinks of its arguments.
fn first_line(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&text).lines().find(|line| !line.is_empty())?.trim().to_owned())
}
