//! `cargo xtask load`: the program under the load of many connections, watched for errors and for memory that grows.
//!
//! No test: it takes minutes, and its verdict depends on the machine.

mod cases;
mod tool;

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use admit_testbed::{Daemon, Home, Port, Postgres, Proxy, target_dir};
use anyhow::{Context, Result, bail};
use clap::Args;

use crate::packages;
use crate::run::{cargo, say, step};
use cases::{CASES, Case, Expects, Front, Store};
use tool::Report;

/// Envoy's clients, each of which asks 50 times a second.
const ENVOY_CONNECTIONS: u32 = 16;
/// By how much samples of memory differ, in KiB.
const NOISE_KIB: u64 = 3 << 10;

const SERVICE: &str = "server { listen 127.0.0.1:PORT; location / { return 200 'hello'; } }\n";

#[derive(Args)]
pub(crate) struct Options {
    /// How long memory is looked at in each case, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How long each case runs before that, in seconds: until each connection to a service has its largest buffer.
    #[arg(long, default_value_t = 120)]
    warm_up: u64,
    /// How many connections there are at once.
    #[arg(long, default_value_t = 256)]
    connections: u32,
    /// Only the cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    packages::load(true)?;
    step(&mut cargo(&["build", "--release", "-p", "admit-server"]))?;
    let service = Port::free()?;
    let files = [("service.conf".to_owned(), SERVICE.replace("PORT", &service.number().to_string()))];
    let _service = Proxy::Nginx.start("service.conf", &files)?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{:<24} {:>12} {:>10} {:>8} {:>9} {:>9}",
        "case", "requests/s", "requests", "errors", "RSS MiB", "at end"
    )?;
    let mut failed = Vec::new();
    for case in CASES.iter().filter(|case| case.name.contains(&options.only)) {
        let seen = measure(case, options, service.number()).with_context(|| case.name)?;
        let Report { requests_per_second, requests, errors } = seen.report;
        let [early, late] = [seen.early, seen.late].map(|kib| kib as f64 / 1024.0);
        writeln!(
            out,
            "{:<24} {requests_per_second:>12.0} {requests:>10} {errors:>8} {early:>9.1} {late:>9.1}",
            case.name
        )?;
        if !seen.holds(case) {
            failed.push(case.name);
        }
    }
    if !failed.is_empty() {
        bail!("these had errors, or memory that grew: {}", failed.join("; "));
    }
    Ok(())
}

/// What was seen of a case.
struct Seen {
    report: Report,
    /// Resident memory at the begin and at the end, in KiB.
    early: u64,
    late: u64,
}

impl Seen {
    /// Memory is flat if it grew by less than a twentieth, or by less than allocators and samples differ.
    fn holds(&self, case: &Case) -> bool {
        let Report { requests, errors, .. } = self.report;
        let allowed = if case.expects == Expects::AllowedInTime { requests / 100 } else { 0 };
        let is_flat = self.late <= self.early + (self.early / 20).max(NOISE_KIB);
        requests > 0 && errors <= allowed && is_flat
    }
}

fn measure(case: &Case, options: &Options, service: u16) -> Result<Seen> {
    let home = Home::new("load")?;
    fs::write(home.path().join("admit.toml"), include_str!("policy.toml"))?;
    let ports = [Port::free()?, Port::free()?, Port::free()?];
    let [listen, admin, envoy] = [0, 1, 2].map(|i: usize| ports[i].number());
    let postgres = (case.store == Store::Postgres).then(Postgres::start).transpose()?;
    let store = match (case.store, &postgres) {
        (Store::Sqlite, _) => "sqlite:admit.db".to_owned(),
        (Store::Postgres, Some(postgres)) => postgres.url(),
        _ => "memory:".to_owned(),
    };
    let mut command = Command::new(target_dir().join("release/admit"));
    command.current_dir(home.path()).args(["serve", "admit.toml", "--store", &store]);
    command.args(["--listen", &format!("127.0.0.1:{listen}"), "--admin", &format!("127.0.0.1:{admin}")]);
    if case.front == Front::Gateway {
        command.args(["--upstream", &format!("http://127.0.0.1:{service}")]);
    }
    let program = Daemon::start(&home, command, "\"listening\"")?;
    let ports = [("LISTEN", envoy), ("SERVICE", service), ("ADMIT", listen)];
    let config = ports.iter().fold(include_str!("envoy.yaml").to_owned(), |config, (name, port)| {
        config.replace(name, &port.to_string())
    });
    let proxy = (case.front == Front::Envoy)
        .then(|| Proxy::Envoy.start("envoy.yaml", &[("envoy.yaml".to_owned(), config)]))
        .transpose()?;
    let (port, connections) = match proxy {
        Some(_) => (envoy, options.connections.min(ENVOY_CONNECTIONS)),
        None => (listen, options.connections),
    };
    let url = format!("http://127.0.0.1:{port}{}", case.path);

    let seconds = options.warm_up + options.seconds;
    say(format!("{} for {seconds} s", case.name));
    let load = case.tool.command(case, connections, seconds, &url, home.path())?;
    let (samples, text) = watched(load, program.id(), seconds)?;
    let samples = samples.get(options.warm_up as usize..).context("the load ended before its time")?;
    let third = (samples.len() / 3).max(1);
    let early = median(samples.iter().take(third));
    let late = median(samples.iter().rev().take(third));
    let report = case.tool.read(&text, case.expects).with_context(|| text.clone())?;
    Ok(Seen { report, early, late })
}

/// Runs the load to its end, and looks at the program's memory every second meanwhile.
fn watched(mut load: Command, program: u32, seconds: u64) -> Result<(Vec<u64>, String)> {
    let child = load.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (send, ended) = mpsc::channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    let mut samples = Vec::new();
    let limit = seconds as usize + 60;
    loop {
        match ended.recv_timeout(Duration::from_secs(1)) {
            Ok(output) => {
                let output = output?;
                let text = [output.stdout, output.stderr].concat();
                return Ok((samples, String::from_utf8_lossy(&text).into_owned()));
            }
            Err(RecvTimeoutError::Timeout) if samples.len() < limit => samples.extend(resident_kib(program)),
            Err(_) => bail!("the load did not end"),
        }
    }
}

fn resident_kib(program: u32) -> Option<u64> {
    let listing = Command::new("ps").args(["-o", "rss=", "-p", &program.to_string()]).output().ok()?;
    String::from_utf8_lossy(&listing.stdout).trim().parse().ok()
}

fn median<'s>(samples: impl Iterator<Item = &'s u64>) -> u64 {
    let mut samples: Vec<u64> = samples.copied().collect();
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}
