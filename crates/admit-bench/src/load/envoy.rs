//! Envoy's rate limit service: h2load for its speed, and callers of this process for what it admits.

use std::time::Duration;

use anyhow::{Result, bail};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use futures::future::try_join_all;
use prost::Message;
use tokio::runtime::Handle;

use super::h2load::H2load;
use super::limiter::fresh_salt;
use super::web::{ALLOWED, CALLERS, TIMES};
use crate::case::{Accuracy, Side};

/// The domain of all requests.
pub(crate) const DOMAIN: &str = "edge";
/// The descriptor whose budget never refuses.
pub(crate) const OPEN: &str = "user";
/// The descriptor whose budget allows [`ALLOWED`].
pub(crate) const SHUT: &str = "few";

/// A service on the loopback port.
pub(crate) struct Envoy {
    pub(crate) port: u16,
    /// Whether it holds anybody to anything.
    pub(crate) limits: bool,
    pub(crate) runtime: Handle,
}

impl Side for Envoy {
    fn run(&self, time: Duration) -> Result<Vec<f64>> {
        let path = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let url = format!("http://127.0.0.1:{}/{path}", self.port);
        let message = request(OPEN, "one").encode_to_vec();
        Ok(vec![H2load { url, connections: 8, streams: 32, message }.run(time)?])
    }

    fn accuracy(&self) -> Result<Option<Accuracy>> {
        if !self.limits {
            return Ok(None);
        }
        let request = request(SHUT, &format!("bucket-{}", fresh_salt()));
        let admitted = self.runtime.block_on(admitted(self.port, &request))?;
        Ok(Some(Accuracy { admitted, allowed: ALLOWED }))
    }
}

fn request(key: &str, value: &str) -> RateLimitRequest {
    let entry = Entry { key: key.to_owned(), value: value.to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    RateLimitRequest {
        domain: DOMAIN.to_owned(),
        descriptors: vec![descriptor],
        ..RateLimitRequest::default()
    }
}

/// How many of many such requests at once are admitted.
async fn admitted(port: u16, request: &RateLimitRequest) -> Result<u64> {
    let client = RateLimitServiceClient::connect(format!("http://127.0.0.1:{port}")).await?;
    let callers = (0..CALLERS).map(|_| {
        let (mut client, request) = (client.clone(), request.clone());
        tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..TIMES {
                let response = client.should_rate_limit(request.clone()).await?.into_inner();
                admitted += match response.overall_code() {
                    Code::Ok => 1,
                    Code::OverLimit => 0,
                    Code::Unknown => bail!("an answer that is neither yes nor no"),
                };
            }
            anyhow::Ok(admitted)
        })
    });
    try_join_all(callers).await?.into_iter().sum()
}
