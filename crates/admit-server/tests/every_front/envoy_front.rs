//! Envoy's protocol, over gRPC and as JSON.

use std::net::SocketAddr;

use axum::Router;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::google::protobuf::UInt64Value;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::fronts::listen;

/// What is told of how callers stand.
const FIELDS: [&str; 3] = ["retry-after", "ratelimit", "ratelimit-policy"];

pub(crate) struct EnvoyFront {
    address: SocketAddr,
    channel: Channel,
    _serving: AbortOnDropHandle<()>,
}

pub(crate) struct EnvoyTold {
    /// OK, OVER_LIMIT, or what kept the call from an answer.
    pub(crate) code: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: String,
}

/// A key, its value, and its hits.
type Descriptor<'a> = (&'a str, &'a String, u64);

fn in_order(of: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    FIELDS.iter().filter_map(|name| Some(((*name).to_owned(), of(name)?))).collect()
}

impl EnvoyFront {
    pub(crate) async fn start(router: Router) -> Self {
        let (address, serving) = listen(router).await;
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        Self { address, channel, _serving: serving }
    }

    pub(crate) async fn over_grpc(&self, descriptors: &[Descriptor<'_>], token: Option<&str>) -> EnvoyTold {
        let descriptors = descriptors.iter().map(|(key, value, hits)| RateLimitDescriptor {
            entries: vec![Entry { key: (*key).into(), value: (*value).clone() }],
            hits_addend: Some(UInt64Value { value: *hits }),
            ..RateLimitDescriptor::default()
        });
        let request =
            RateLimitRequest { domain: "edge".into(), descriptors: descriptors.collect(), hits_addend: 0 };
        let mut request = tonic::Request::new(request);
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        match client.should_rate_limit(request).await {
            Ok(response) => {
                let response = response.into_inner();
                let headers = &response.response_headers_to_add;
                let value = |name: &str| {
                    headers.iter().find(|header| header.key == name).map(|header| header.value.clone())
                };
                EnvoyTold {
                    code: response.overall_code().as_str_name().to_owned(),
                    fields: in_order(value),
                    body: String::from_utf8(response.raw_body.clone()).unwrap(),
                }
            }
            Err(status) => {
                let code = match status.code() {
                    tonic::Code::Unavailable => "UNAVAILABLE",
                    tonic::Code::Unauthenticated => "UNAUTHENTICATED",
                    _ => panic!("{status:?}"),
                };
                EnvoyTold { code: code.to_owned(), fields: Vec::new(), body: String::new() }
            }
        }
    }

    pub(crate) async fn at_json(&self, descriptors: &[Descriptor<'_>]) -> EnvoyTold {
        let descriptors = descriptors
            .iter()
            .map(|(key, value, hits)| json!({"entries": [{"key": key, "value": value}], "hitsAddend": hits}));
        let body = json!({"domain": "edge", "descriptors": descriptors.collect::<Value>()}).to_string();
        let request = http::Request::post(format!("http://{}/json", self.address));
        let request = request.header("content-type", "application/json").body(body).unwrap();
        let client = Client::builder(TokioExecutor::new()).build_http::<String>();
        let (head, body) = client.request(request).await.unwrap().into_parts();
        let body: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
        let code = body["overallCode"].as_str();
        assert_eq!(code.is_some(), [200, 429].contains(&head.status.as_u16()), "{body}");
        EnvoyTold {
            code: code.map_or_else(|| head.status.as_str().to_owned(), str::to_owned),
            fields: in_order(|name| Some(head.headers.get(name)?.to_str().unwrap().to_owned())),
            body: body["rawBody"].as_str().unwrap_or_default().to_owned(),
        }
    }

    pub(crate) async fn is_serving(&self) -> bool {
        let mut client = HealthClient::new(self.channel.clone());
        let asked = client.check(HealthCheckRequest { service: String::new() }).await.unwrap();
        asked.into_inner().status() == ServingStatus::Serving
    }
}
