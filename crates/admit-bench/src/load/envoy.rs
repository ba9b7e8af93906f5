//! Envoy's rate limit service: h2load for its speed, and callers of this process beside it for what it admits.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use prost::Message;
use tokio::runtime::Handle;
use tonic::transport::Channel;

use super::beside::{ALLOWED, LOADED, admitted, tally_beside};
use super::h2load::H2load;
use super::limiter::fresh_salt;
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

impl Envoy {
    fn load(&self, time: Duration) -> Result<f64> {
        let path = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let url = format!("http://127.0.0.1:{}/{path}", self.port);
        H2load { url, connections: 8, streams: 32, message: request(OPEN, "one").encode_to_vec() }.run(time)
    }

    /// Asks once what h2load asks, to which a refusal and an error are answers with 200 too.
    fn must_admit(&self) -> Result<()> {
        let asking = async {
            let client = client(self.port).await?;
            is_admitted(client, request(OPEN, "one")).await
        };
        ensure!(self.runtime.block_on(asking)?, "an open budget refused");
        Ok(())
    }
}

impl Side for Envoy {
    fn run(&self, time: Duration) -> Result<Vec<f64>> {
        self.must_admit()?;
        let per_second = self.load(time)?;
        self.must_admit()?;
        Ok(vec![per_second])
    }

    fn accuracy(&self) -> Result<Option<Accuracy>> {
        if !self.limits {
            return Ok(None);
        }
        let tally = || {
            let request = request(SHUT, &format!("bucket-{}", fresh_salt()));
            let client = self.runtime.block_on(client(self.port))?;
            let ask = move || is_admitted(client.clone(), request.clone());
            let admitted = self.runtime.block_on(admitted(ask))?;
            Ok(Accuracy { admitted, allowed: ALLOWED })
        };
        tally_beside(|| self.load(LOADED), tally).map(Some)
    }
}

type Client = RateLimitServiceClient<Channel>;

async fn client(port: u16) -> Result<Client> {
    Ok(Client::connect(format!("http://127.0.0.1:{port}")).await?)
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

async fn is_admitted(mut client: Client, request: RateLimitRequest) -> Result<bool> {
    match client.should_rate_limit(request).await?.into_inner().overall_code() {
        Code::Ok => Ok(true),
        Code::OverLimit => Ok(false),
        Code::Unknown => bail!("an answer that is neither yes nor no"),
    }
}
