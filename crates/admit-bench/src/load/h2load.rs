//! h2load: gRPC calls from many streams.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;

use crate::case::Missing;

/// Unary calls, all alike.
pub(crate) struct H2load {
    pub(crate) url: String,
    pub(crate) connections: u32,
    /// How many calls are under way at once on each.
    pub(crate) streams: u32,
    /// The encoded message.
    pub(crate) message: Vec<u8>,
}

impl H2load {
    /// Runs it for `time`, in whole seconds and at least one, and tells how many calls a second were answered.
    ///
    /// # Errors
    /// If it is not installed, or an answer was not 2xx.
    pub(crate) fn run(&self, time: Duration) -> Result<f64> {
        let body = NamedTempFile::new()?;
        // A message is not compressed (0), and told with its length (gRPC over HTTP/2, Length-Prefixed-Message).
        let length = u32::try_from(self.message.len())?.to_be_bytes();
        std::fs::write(body.path(), [&[0], &length[..], &self.message].concat())?;
        let seconds = time.as_secs_f64().round().max(1.0);
        let mut h2load = Command::new("h2load");
        h2load.args(["-t1", "-c", &self.connections.to_string(), "-m", &self.streams.to_string()]);
        h2load.args([
            "-D",
            &seconds.to_string(),
            "-H",
            "content-type: application/grpc",
            "-H",
            "te: trailers",
        ]);
        let output = h2load.arg("-d").arg(body.path()).arg(&self.url).output().context(Missing("h2load"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        read(&text).with_context(|| format!("h2load at {} wrote: {text}", self.url))
    }
}

fn read(text: &str) -> Result<f64> {
    let before = |mark: &str| -> Result<f64> {
        let (before, _) = text.split_once(mark).with_context(|| format!("no count of{mark}"))?;
        let number = before.rsplit(|c: char| !c.is_ascii_digit() && c != '.').next();
        Ok(number.unwrap_or_default().parse()?)
    };
    for wrong in [" failed", " errored", " timeout"] {
        ensure!(before(wrong)? == 0.0, "{} calls{wrong}", before(wrong)?);
    }
    before(" req/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_unless_a_call_failed() {
        let text = |failed: u32| {
            format!(
                "finished in 2.00s, 500.50 req/s, 1MB/s\nrequests: 1001 total, 1001 started, 1001 done, 990 succeeded, \
                 {failed} failed, 0 errored, 0 timeout\n"
            )
        };
        assert_eq!(read(&text(0)).unwrap(), 500.5);
        assert_eq!(read(&text(3)).unwrap_err().to_string(), "3 calls failed");
    }
}
