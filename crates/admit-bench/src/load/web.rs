//! HTTP/1.1 services: wrk for their speed, and callers of this process for what they admit.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures::future::try_join_all;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::runtime::Handle;

use super::limiter::fresh_salt;
use super::wrk::Wrk;
use crate::case::{Accuracy, Side};

/// What every server is told to allow where accuracy is looked at.
pub(crate) const ALLOWED: u64 = 50;
/// How many callers ask at once, and how often each.
pub(crate) const CALLERS: usize = 128;
pub(crate) const TIMES: usize = 4;

/// A request about the bucket of a name, with a budget of [`ALLOWED`].
pub(crate) type Ask = Box<dyn Fn(&str) -> Result<Request<Full<Bytes>>>>;

/// One service.
pub(crate) struct Web {
    pub(crate) wrk: Wrk,
    /// Whether the 99th percentile of the latency is a measure too.
    pub(crate) tells_p99: bool,
    /// Nothing if it holds nobody to anything.
    pub(crate) ask: Option<Ask>,
    pub(crate) runtime: Handle,
}

impl Side for Web {
    fn run(&self, time: Duration) -> Result<Vec<f64>> {
        let report = self.wrk.run(time)?;
        Ok(if self.tells_p99 {
            vec![report.per_second, report.p99_milliseconds]
        } else {
            vec![report.per_second]
        })
    }

    fn accuracy(&self) -> Result<Option<Accuracy>> {
        let Some(ask) = &self.ask else { return Ok(None) };
        let request = ask(&format!("bucket-{}", fresh_salt()))?;
        let admitted = self.runtime.block_on(admitted(&request))?;
        Ok(Some(Accuracy { admitted, allowed: ALLOWED }))
    }
}

/// How many of many such requests at once are admitted.
async fn admitted(request: &Request<Full<Bytes>>) -> Result<u64> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let callers = (0..CALLERS).map(|_| {
        let (client, request) = (client.clone(), request.clone());
        tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..TIMES {
                let response = client.request(request.clone()).await?;
                let status = response.status();
                let body = response.into_body().collect().await?.to_bytes();
                admitted += u64::from(is_admitted(status, &body)?);
            }
            anyhow::Ok(admitted)
        })
    });
    try_join_all(callers).await?.into_iter().sum()
}

/// By its status; throttlecrab tells it in the body.
fn is_admitted(status: StatusCode, body: &[u8]) -> Result<bool> {
    let says = |text: &str| body.windows(text.len()).any(|part| part == text.as_bytes());
    match status {
        StatusCode::OK => Ok(!says(r#""allowed":false"#)),
        StatusCode::TOO_MANY_REQUESTS => Ok(false),
        _ => bail!("an answer with {status}: {}", String::from_utf8_lossy(body)),
    }
}

/// A GET by a user of the name.
pub(crate) fn get(url: String) -> Ask {
    Box::new(move |name| {
        Request::get(&url).header("x-user", name).body(Full::default()).context("not a request")
    })
}

/// A POST of JSON in which `NAME` stands for the name.
pub(crate) fn post(url: String, body: &'static str) -> Ask {
    Box::new(move |name| {
        let request = Request::post(&url).header("content-type", "application/json");
        request.body(Full::from(body.replace("NAME", name))).context("not a request")
    })
}
