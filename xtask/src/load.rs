//! `cargo xtask load`: the program under the load of many connections, watched for errors and for memory that grows, and under
//! that of an Envoy, whose time limit it has to keep.
//!
//! No test: it takes minutes, and its verdict depends on the machine. wrk speaks HTTP/1.1, h2load HTTP/2.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use admit_testbed::{Daemon, Home, Port, Postgres, Proxy};
use anyhow::{Context, Result, bail};
use clap::Args;

use crate::run::{cargo, root, say, step};

#[derive(Args)]
pub(crate) struct Options {
    /// How long each case runs.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How many connections there are at once.
    #[arg(long, default_value_t = 256)]
    connections: u32,
    /// Only the cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

/// A front, how it is asked, and what it is to answer.
struct Case {
    name: &'static str,
    gateway: bool,
    store: Store,
    tool: Tool,
    path: &'static str,
    /// The body of a POST; nothing for a GET.
    body: Option<&'static str>,
    /// Other than 200.
    refused: bool,
}

enum Store {
    Memory,
    Sqlite,
    Postgres,
}

enum Tool {
    Wrk,
    /// With a header `x-user` of 100,000 different values.
    WrkManyUsers,
    H2load,
    /// The calls of an Envoy with a few workers, at a steady rate: with as many as can be, the time would be the queue's.
    Envoy,
}

/// How long Envoy waits for a decision unless it is told otherwise; 99 of 100 have to be there by then.
const ENVOY_WAITS: Duration = Duration::from_millis(20);
/// `ShouldRateLimit` for the user `ann`, framed as gRPC has it.
const RATE_LIMIT: &str = "\0\0\0\0\x15\n\x04edge\x12\r\n\x0b\n\x04user\x12\x03ann";
const RATE_LIMIT_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[rustfmt::skip]
const CASES: [Case; 12] = [
    case("gateway", true, Store::Memory, Tool::Wrk, "/open"),
    case("gateway, 100,000 keys", true, Store::Memory, Tool::WrkManyUsers, "/open"),
    case("gateway, HTTP/2", true, Store::Memory, Tool::H2load, "/open"),
    Case { refused: true, ..case("gateway, refusals", true, Store::Memory, Tool::Wrk, "/shut") },
    case("gateway, SQLite", true, Store::Sqlite, Tool::Wrk, "/open"),
    case("gateway, PostgreSQL", true, Store::Postgres, Tool::Wrk, "/open"),
    case("/authorize", false, Store::Memory, Tool::Wrk, "/authorize/open"),
    case("/authorize, HTTP/2", false, Store::Memory, Tool::H2load, "/authorize/open"),
    Case { body: Some(TAKE), ..case("/v1/take", false, Store::Memory, Tool::Wrk, "/v1/take") },
    Case { body: Some(TAKE), ..case("/v1/take, HTTP/2", false, Store::Memory, Tool::H2load, "/v1/take") },
    Case { body: Some(RATE_LIMIT), ..case("Envoy, SQLite", false, Store::Sqlite, Tool::Envoy, RATE_LIMIT_PATH) },
    Case { body: Some(RATE_LIMIT), ..case("Envoy, PostgreSQL", false, Store::Postgres, Tool::Envoy, RATE_LIMIT_PATH) },
];

const TAKE: &str = r#"{"charges":[{"budget":"open","key":"one"}]}"#;

const POLICY: &str = r#"
[budgets.open]
rate = "10000000/second"
by = "header:x-user"

[budgets.shut]
rate = "1/hour"
by = "header:x-user"

[budgets.envoy]
rate = "10000000/second"
by = "entry:user"

[[descriptors]]
entries = { user = "*" }
budgets = ["envoy"]

[[routes]]
match = "GET /open"
budgets = ["open"]

[[routes]]
match = "GET /shut"
budgets = ["shut"]
"#;

/// For wrk: a user of 100,000, or a POST.
const MANY_USERS: &str = r#"
request = function() return wrk.format(nil, nil, { ["x-user"] = tostring(math.random(100000)) }) end
"#;

const SERVICE: &str = "server { listen 127.0.0.1:PORT; location / { return 200 'hello'; } }\n";

const fn case(name: &'static str, gateway: bool, store: Store, tool: Tool, path: &'static str) -> Case {
    Case { name, gateway, store, tool, path, body: None, refused: false }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    for tool in ["wrk", "h2load"] {
        let found = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found
            .with_context(|| format!("{tool} was not found (Debian: apt-get install wrk nghttp2-client)"))?;
    }
    step(&mut cargo(&["build", "--release", "-p", "admit-server"]))?;
    let service = Port::free()?;
    let files = [("service.conf".to_owned(), SERVICE.replace("PORT", &service.number().to_string()))];
    let _service = Proxy::Nginx.start("service.conf", &files)?;
    let mut failed = Vec::new();
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{:<24} {:>12} {:>8} {:>9} {:>9} {:>8}",
        "case", "requests/s", "errors", "RSS MiB", "at end", "p99 ms"
    )?;
    for case in CASES.iter().filter(|case| case.name.contains(&options.only)) {
        let seen = measure(case, options, service.number()).with_context(|| case.name)?;
        let Seen { rate, errors, .. } = seen;
        let [early, late] = [seen.early, seen.late].map(|kib| kib as f64 / 1024.0);
        let p99 = seen.p99.map(|time| format!("{:.1}", time.as_secs_f64() * 1e3)).unwrap_or_default();
        writeln!(out, "{:<24} {rate:>12.0} {errors:>8} {early:>9.1} {late:>9.1} {p99:>8}", case.name)?;
        if !seen.holds() {
            failed.push(case.name);
        }
    }
    if !failed.is_empty() {
        bail!(
            "these cases had errors, other answers than they should, memory that grew, or answers too late: {}",
            failed.join(", ")
        );
    }
    Ok(())
}

/// What was seen of a case.
struct Seen {
    rate: f64,
    /// Broken connections and answers of another status.
    errors: u64,
    /// Resident memory after the warm-up and at the end, in KiB.
    early: u64,
    late: u64,
    /// Within which 99 of 100 answers came, where there is a limit to that.
    p99: Option<Duration>,
}

impl Seen {
    /// Memory is flat if it grew by less than a twentieth, or by less than allocators and samples differ.
    fn holds(&self) -> bool {
        const NOISE_KIB: u64 = 3 << 10;
        let is_flat = self.late <= self.early + (self.early / 20).max(NOISE_KIB);
        self.errors == 0 && self.rate > 0.0 && is_flat && self.p99.is_none_or(|time| time <= ENVOY_WAITS)
    }
}

fn measure(case: &Case, options: &Options, service: u16) -> Result<Seen> {
    say(format!("{} for {} s", case.name, options.seconds));
    let home = Home::new("load")?;
    fs::write(home.path().join("admit.toml"), POLICY)?;
    fs::write(home.path().join("users.lua"), MANY_USERS)?;
    if let Some(body) = case.body {
        fs::write(home.path().join("body"), body)?;
        let post = format!(
            "wrk.method = 'POST'\nwrk.body = '{body}'\nwrk.headers['content-type'] = 'application/json'\n"
        );
        fs::write(home.path().join("post.lua"), post)?;
    }
    let [listen, admin] = [Port::free()?, Port::free()?];
    let address = |port: &Port| format!("127.0.0.1:{}", port.number());
    let postgres = matches!(case.store, Store::Postgres).then(Postgres::start).transpose()?;
    let store = match (&case.store, &postgres) {
        (Store::Sqlite, _) => "sqlite:admit.db".to_owned(),
        (Store::Postgres, Some(postgres)) => postgres.url(),
        _ => "memory:".to_owned(),
    };
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let admit = target.join("release/admit");
    let mut command = Command::new(&admit);
    command.current_dir(home.path()).args(["serve", "admit.toml", "--store", &store]);
    command.args(["--listen", &address(&listen), "--admin", &address(&admin)]);
    if case.gateway {
        command.args(["--upstream", &format!("http://127.0.0.1:{service}")]);
    }
    let program = Daemon::start(&home, command, "\"listening\"")?;

    let url = format!("http://{}{}", address(&listen), case.path);
    let load = case.tool.command(case, options, &url, home.path());
    let (samples, report) = watched(load, program.id(), options.seconds)?;
    let p99 = match case.tool {
        Tool::Envoy => {
            was_decided(&admit, &address(&admin))?;
            Some(p99(&fs::read_to_string(home.path().join("times"))?).context("no times")?)
        }
        _ => None,
    };
    drop(program);
    let third = (samples.len() / 3).max(1);
    let early = median(samples.iter().skip(third).take(third));
    let late = median(samples.iter().rev().take(third));
    let (rate, errors) = case.tool.read(&report, case.refused).with_context(|| report.clone())?;
    Ok(Seen { rate, errors, early, late, p99 })
}

/// An error of gRPC has the status 200, so the program is asked whether it decided.
fn was_decided(admit: &Path, admin: &str) -> Result<()> {
    let output = Command::new(admit).args(["status", "--admin", &format!("http://{admin}")]).output()?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    if !told.contains(" granted, 0 refused\n") || told.contains(" 0 granted") {
        bail!("not all was granted: {told}");
    }
    Ok(())
}

/// From h2load's log of requests, whose third column is the time in microseconds.
fn p99(times: &str) -> Option<Duration> {
    let mut times: Vec<u64> =
        times.lines().filter_map(|line| line.split('\t').nth(2)?.parse().ok()).collect();
    times.sort_unstable();
    times.get(times.len() * 99 / 100).copied().map(Duration::from_micros)
}

/// Runs the load to its end, and looks at the program's memory every second meanwhile.
fn watched(mut load: Command, program: u32, seconds: u64) -> Result<(Vec<u64>, String)> {
    let child: Child = load.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
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

impl Tool {
    fn command(&self, case: &Case, options: &Options, url: &str, dir: &Path) -> Command {
        let connections = options.connections.to_string();
        let mut command = match self {
            Self::Wrk | Self::WrkManyUsers => {
                let mut wrk = Command::new("wrk");
                wrk.args(["-t1", "-c", &connections, "-d", &format!("{}s", options.seconds)]);
                match (self, case.body) {
                    (Self::WrkManyUsers, _) => wrk.args(["-s", "users.lua"]),
                    (_, Some(_)) => wrk.args(["-s", "post.lua"]),
                    _ => &mut wrk,
                };
                wrk
            }
            Self::H2load => {
                let mut h2load = Command::new("h2load");
                h2load.args(["-t1", "-m4", "-c", &connections, "-D", &options.seconds.to_string()]);
                if case.body.is_some() {
                    h2load.args(["-d", "body", "-H", "content-type: application/json"]);
                }
                h2load
            }
            Self::Envoy => {
                let mut h2load = Command::new("h2load");
                h2load.args(["-t1", "-c8", "-m32", "--rps", "125", "-D", &options.seconds.to_string()]);
                h2load.args(["-d", "body", "-H", "content-type: application/grpc", "-H", "te: trailers"]);
                h2load.args(["--log-file", "times"]);
                h2load
            }
        };
        command.arg(url).current_dir(dir);
        command
    }

    /// Requests a second, and how many of them failed.
    fn read(&self, report: &str, refused: bool) -> Result<(f64, u64)> {
        match self {
            Self::Wrk | Self::WrkManyUsers => {
                let total = number_before(report, " requests in ").context("no count of requests")?;
                let rate = number_after(report, "Requests/sec:").context("no rate")?;
                let broken: u64 = ["connect ", "read ", "write ", "timeout "]
                    .iter()
                    .filter_map(|kind| number_after(report.split("Socket errors:").nth(1)?, kind))
                    .sum::<f64>() as u64;
                let other = number_after(report, "Non-2xx or 3xx responses:").unwrap_or(0.0) as u64;
                // One refusal is none: the bucket's single token.
                let wrong = if refused { (total as u64).saturating_sub(other + 1) } else { other };
                Ok((rate, broken + wrong))
            }
            Self::H2load | Self::Envoy => {
                let rate = number_before(report, " req/s").context("no rate")?;
                let of = |kind: &str| number_before(report, kind).context("no counts").map(|n| n as u64);
                let wrong = of(" 3xx")? + of(" 4xx")? + of(" 5xx")?;
                Ok((rate, of(" failed")? + of(" errored")? + of(" timeout")? + wrong))
            }
        }
    }
}

fn number_after(text: &str, mark: &str) -> Option<f64> {
    let rest = text.split(mark).nth(1)?.trim_start();
    rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok()
}

fn number_before(text: &str, mark: &str) -> Option<f64> {
    let before = text.split(mark).next().filter(|before| before.len() < text.len())?;
    before.rsplit(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_as_the_tools_write_them() {
        let wrk = "  4 threads and 256 connections\n  1000 requests in 10.00s, 1MB read\n  Socket errors: connect 0, \
                   read 3, write 0, timeout 2\n  Non-2xx or 3xx responses: 7\nRequests/sec:  41234.50\n";
        assert_eq!(Tool::Wrk.read(wrk, false).unwrap(), (41_234.5, 12));
        assert_eq!(Tool::Wrk.read(wrk, true).unwrap(), (41_234.5, 5 + 992));
        let h2load = "finished in 2.00s, 500.50 req/s, 1MB/s\nrequests: 1001 total, 1001 started, 1001 done, 990 \
                      succeeded, 1 failed, 2 errored, 3 timeout\nstatus codes: 990 2xx, 0 3xx, 4 4xx, 5 5xx\n";
        assert_eq!(Tool::H2load.read(h2load, false).unwrap(), (500.5, 15));
        let times: String = (1..=200).rev().map(|time| format!("1796040568628904\t200\t{time}\n")).collect();
        assert_eq!(p99(&times), Some(Duration::from_micros(199)));
    }
}
