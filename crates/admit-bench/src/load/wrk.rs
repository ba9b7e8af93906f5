//! wrk: HTTP/1.1 from many connections.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tempfile::NamedTempFile;

use super::web::{get, json};
use crate::case::Missing;

/// What wrk sends, and where to.
pub(crate) struct Wrk {
    pub(crate) url: String,
    pub(crate) connections: u32,
    /// The body of a POST of JSON; nothing for a GET.
    pub(crate) body: Option<String>,
}

/// What it reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Report {
    pub(crate) per_second: f64,
    /// The time within which 99 of 100 were answered.
    pub(crate) p99_milliseconds: f64,
}

/// The user of every GET.
const USER: &str = "one";

impl Wrk {
    /// What it sends, once.
    pub(crate) fn request(&self) -> Result<Request<Full<Bytes>>> {
        match &self.body {
            Some(body) => json(&self.url, body.clone()),
            None => get(self.url.clone())(USER),
        }
    }

    /// Runs it for `time`, in whole seconds and at least one.
    ///
    /// # Errors
    /// If it is not installed, or an answer was not 2xx.
    pub(crate) fn run(&self, time: Duration) -> Result<Report> {
        let script = NamedTempFile::new()?;
        let text = match &self.body {
            Some(body) => format!(
                "wrk.method = 'POST'\nwrk.body = [[{body}]]\nwrk.headers['content-type'] = 'application/json'\n"
            ),
            None => String::new(),
        };
        std::fs::write(script.path(), text)?;
        let seconds = time.as_secs_f64().round().max(1.0);
        let mut wrk = Command::new("wrk");
        wrk.args(["-t1", "--latency", "-c", &self.connections.to_string(), "-d", &format!("{seconds}s")]);
        let output =
            wrk.args(["-H", &format!("x-user: {USER}"), "-s"]).arg(script.path()).arg(&self.url).output();
        let text = String::from_utf8_lossy(&output.context(Missing("wrk"))?.stdout).into_owned();
        read(&text).with_context(|| format!("wrk at {} wrote: {text}", self.url))
    }
}

fn read(text: &str) -> Result<Report> {
    for wrong in ["Socket errors:", "Non-2xx or 3xx responses:"] {
        let line = text.lines().find(|line| line.contains(wrong));
        ensure!(line.is_none(), "{}", line.unwrap_or_default().trim());
    }
    let line = |mark: &str| text.lines().find_map(|line| line.trim_start().strip_prefix(mark)).map(str::trim);
    let per_second = line("Requests/sec:").context("no rate")?.parse()?;
    let p99_milliseconds = milliseconds(line("99%").context("no latency")?).context("not a time")?;
    Ok(Report { per_second, p99_milliseconds })
}

/// Of a time as wrk writes it: `812.00us`, `1.24ms`, `1.00s`.
fn milliseconds(text: &str) -> Option<f64> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic())?;
    let factor = match &text[unit..] {
        "us" => 1e-3,
        "ms" => 1.0,
        "s" => 1e3,
        _ => return None,
    };
    Some(text[..unit].parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "  Latency Distribution\n     50%  812.00us\n     99%    1.24ms\n  1000 requests in 10.00s, 1MB \
                        read\nRequests/sec:  41234.50\n";

    #[test]
    fn the_rate_and_the_99th_percentile_are_read() {
        assert_eq!(read(GOOD).unwrap(), Report { per_second: 41_234.5, p99_milliseconds: 1.24 });
        assert_eq!(["812.00us", "1.00s"].map(milliseconds), [Some(0.812), Some(1_000.0)]);
    }

    /// A share of 94.99 % before it was taken for the percentile, and the run for one that failed.
    #[test]
    fn the_percentile_is_told_from_a_share_with_the_same_digits() {
        let text = format!(
            "    Latency   581.88us  417.39us   8.82ms   94.99%\n    Req/Sec    90.06k    16.81k\n{GOOD}"
        );
        assert_eq!(read(&text).unwrap().p99_milliseconds, 1.24);
    }

    #[test]
    fn an_answer_that_is_wrong_makes_all_of_them_worthless() {
        let text = format!("{GOOD}  Non-2xx or 3xx responses: 7\n");
        assert_eq!(read(&text).unwrap_err().to_string(), "Non-2xx or 3xx responses: 7");
    }
}
