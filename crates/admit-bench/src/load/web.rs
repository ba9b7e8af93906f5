//! HTTP/1.1 services: wrk for their speed, and callers of this process beside it for what they admit.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::runtime::Handle;

use super::beside::{ALLOWED, LOADED, admitted, tally_beside};
use super::limiter::fresh_salt;
use super::wrk::Wrk;
use crate::case::{Accuracy, Side};

/// A request about the bucket of a name, with a budget of [`ALLOWED`].
pub(crate) type Ask = Box<dyn Fn(&str) -> Result<Request<Full<Bytes>>>>;

/// One service.
pub(crate) struct Web {
    pub(crate) wrk: Wrk,
    pub(crate) tells: Tells,
    /// Nothing if it holds nobody to anything.
    pub(crate) ask: Option<Ask>,
    pub(crate) runtime: Handle,
}

/// What is measured.
#[derive(Clone, Copy)]
pub(crate) enum Tells {
    Rate,
    /// And the 99th percentile of the latency.
    RateAndLatency,
}

impl Web {
    /// Asks once what wrk asks: what is refused, or wrong, may have the same status.
    fn must_admit(&self) -> Result<()> {
        let request = self.wrk.request()?;
        let admits = self.runtime.block_on(is_admitted(client(), request))?;
        ensure!(admits, "an open budget refused at {}", self.wrk.url);
        Ok(())
    }
}

impl Side for Web {
    fn run(&self, time: Duration) -> Result<Vec<f64>> {
        self.must_admit()?;
        let report = self.wrk.run(time)?;
        self.must_admit()?;
        Ok(match self.tells {
            Tells::Rate => vec![report.per_second],
            Tells::RateAndLatency => vec![report.per_second, report.p99_milliseconds],
        })
    }

    fn accuracy(&self) -> Result<Option<Accuracy>> {
        let Some(ask) = &self.ask else { return Ok(None) };
        let tally = || {
            let request = ask(&format!("bucket-{}", fresh_salt()))?;
            let client = client();
            let ask = move || is_admitted(client.clone(), request.clone());
            let admitted = self.runtime.block_on(admitted(ask))?;
            Ok(Accuracy { admitted, allowed: ALLOWED })
        };
        let wrk = &self.wrk;
        tally_beside(|| wrk.run(LOADED), tally).map(Some)
    }
}

type Http = Client<HttpConnector, Full<Bytes>>;

fn client() -> Http {
    Client::builder(TokioExecutor::new()).build_http()
}

/// By the status of the answer; throttlecrab tells it in the body.
async fn is_admitted(client: Http, request: Request<Full<Bytes>>) -> Result<bool> {
    let response = client.request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    let says = |text: &str| body.windows(text.len()).any(|part| part == text.as_bytes());
    match status {
        StatusCode::OK => Ok(!says(r#""allowed":false"#)),
        StatusCode::TOO_MANY_REQUESTS => Ok(false),
        _ => bail!("an answer with {status}: {}", String::from_utf8_lossy(&body)),
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
    Box::new(move |name| json(&url, body.replace("NAME", name)))
}

/// A POST of JSON.
pub(super) fn json(url: &str, body: String) -> Result<Request<Full<Bytes>>> {
    let request = Request::post(url).header("content-type", "application/json");
    request.body(Full::from(body)).context("not a request")
}
