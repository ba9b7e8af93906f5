//! The programs that make load: how they are told what to do, and what they report.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::cases::{Case, Expects, Tool};

/// For wrk: a user of 100,000.
const MANY_USERS: &str = r#"
request = function() return wrk.format(nil, nil, { ["x-user"] = tostring(math.random(100000)) }) end
"#;

/// What a program reports of its load.
#[derive(Debug, PartialEq)]
pub(super) struct Report {
    pub(super) requests_per_second: f64,
    pub(super) requests: u64,
    /// Broken connections, and answers other than they should be.
    pub(super) errors: u64,
}

impl Tool {
    /// A command that runs in `dir`, where it may write.
    pub(super) fn command(
        self,
        case: &Case,
        connections: u32,
        seconds: u64,
        url: &str,
        dir: &Path,
    ) -> Result<Command> {
        let connections = connections.to_string();
        let mut command = match self {
            Self::Wrk | Self::WrkManyUsers => {
                let script = match case.body {
                    Some(body) => format!(
                        "wrk.method = 'POST'\nwrk.body = '{body}'\nwrk.headers['content-type'] = 'application/json'\n"
                    ),
                    None if self == Self::WrkManyUsers => MANY_USERS.to_owned(),
                    None => String::new(),
                };
                fs::write(dir.join("wrk.lua"), script)?;
                let mut wrk = Command::new("wrk");
                wrk.args(["-t1", "-s", "wrk.lua", "-c", &connections, "-d", &format!("{seconds}s")]);
                wrk
            }
            Self::H2load => {
                let mut h2load = Command::new("h2load");
                h2load.args(["-t1", "-m4", "-c", &connections, "-D", &seconds.to_string()]);
                if let Some(body) = case.body {
                    fs::write(dir.join("body"), body)?;
                    h2load.args(["-d", "body", "-H", "content-type: application/json"]);
                }
                h2load
            }
            Self::Steady => {
                let uris: String = (0..10_000).map(|i| format!("{url}{i}\n")).collect();
                fs::write(dir.join("uris"), uris)?;
                let mut h2load = Command::new("h2load");
                h2load.args([
                    "--h1",
                    "-t1",
                    "--rps=50",
                    "-i",
                    "uris",
                    "-c",
                    &connections,
                    "-D",
                    &seconds.to_string(),
                ]);
                h2load
            }
        };
        if self != Self::Steady {
            command.arg(url);
        }
        command.current_dir(dir);
        Ok(command)
    }

    /// Reads what the program wrote.
    pub(super) fn read(self, text: &str, expects: Expects) -> Result<Report> {
        match self {
            Self::Wrk | Self::WrkManyUsers => {
                let requests = before(text, " requests in ").context("no count of requests")? as u64;
                let requests_per_second = after(text, "Requests/sec:").context("no rate")?;
                let broken = text.split("Socket errors:").nth(1).map_or(0.0, |errors| {
                    ["connect ", "read ", "write ", "timeout "]
                        .iter()
                        .filter_map(|kind| after(errors, kind))
                        .sum()
                });
                let not_2xx = after(text, "Non-2xx or 3xx responses:").unwrap_or(0.0) as u64;
                let wrong = match expects {
                    Expects::Allowed | Expects::AllowedInTime => not_2xx,
                    Expects::Refused => requests.saturating_sub(not_2xx + 1), // The bucket had one token.
                };
                Ok(Report { requests_per_second, requests, errors: broken as u64 + wrong })
            }
            Self::H2load | Self::Steady => {
                let of = |kind: &str| before(text, kind).with_context(|| format!("no count of{kind}"));
                // Answers with an error are counted among the failed ones.
                let errors = of(" failed")? + of(" errored")? + of(" timeout")? + of(" 3xx")?;
                Ok(Report {
                    requests_per_second: of(" req/s")?,
                    requests: of(" total,")? as u64,
                    errors: errors as u64,
                })
            }
        }
    }
}

fn after(text: &str, mark: &str) -> Option<f64> {
    let rest = text.split(mark).nth(1)?.trim_start();
    rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok()
}

fn before(text: &str, mark: &str) -> Option<f64> {
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
        let report = |errors| Report { requests_per_second: 41_234.5, requests: 1_000, errors };
        assert_eq!(Tool::Wrk.read(wrk, Expects::Allowed).unwrap(), report(5 + 7));
        assert_eq!(Tool::Wrk.read(wrk, Expects::Refused).unwrap(), report(5 + 992));
        let h2load = "finished in 2.00s, 500.50 req/s, 1MB/s\nrequests: 1001 total, 1001 started, 1001 done, 990 \
                      succeeded, 10 failed, 2 errored, 3 timeout\nstatus codes: 990 2xx, 0 3xx, 4 4xx, 5 5xx\n";
        let report = Report { requests_per_second: 500.5, requests: 1_001, errors: 15 };
        assert_eq!(Tool::H2load.read(h2load, Expects::Allowed).unwrap(), report);
    }
}
