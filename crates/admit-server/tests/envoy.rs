//! Envoy's rate limit protocol, asked as Envoy asks, and the same as JSON.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::sync::Arc;

use admit_listen::Limits;
use admit_server::Front;
use admit_server::metrics::Metrics;
use admit_server::policy::{Keys, Policy};
use admit_store::AnyStore;
use data_encoding::HEXLOWER;
use envoy_types::pb::envoy::config::core::v3::{Address, HeaderValueOption, SocketAddress, address};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{self, HttpRequest};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const POLICY: &str = r#"
    [budgets.users]
    rate = "2/hour"
    by = "entry:user"
    [budgets.paths]
    rate = "3/10s"
    by = "entry:path"
    [budgets.watched]
    rate = "1/hour"
    by = "entry:user"
    mode = "shadow"
    [budgets.bulk]
    rate = "100/minute"
    by = "entry:bulk"
    cost = 10

    [[descriptors]]
    domain = "edge"
    entries = { user = "root" }
    budgets = []
    [[descriptors]]
    domain = "edge"
    entries = { user = "*" }
    budgets = ["users", "watched"]
    [[descriptors]]
    entries = { path = "*" }
    budgets = ["paths"]
    [[descriptors]]
    entries = { bulk = "*" }
    budgets = ["bulk"]
"#;

const ROUTES: &str = r#"
    [budgets.hourly]
    rate = "1/hour"
    by = ["ip", "header:x-user"]
    [[routes]]
    match = "POST /v1/jobs"
    budgets = "hourly"
"#;

struct Service {
    address: SocketAddr,
    metrics: Metrics,
    grpc: RateLimitServiceClient<Channel>,
    _serving: AbortOnDropHandle<()>,
}

impl Service {
    async fn start(policy: &str) -> Self {
        let policy = Policy::parse("test", policy).unwrap_or_else(|errors| panic!("{:?}", errors.problems()));
        let store = AnyStore::open("memory:", policy.rules().unwrap()).await.unwrap();
        let metrics = Metrics::default();
        let router = Front::new(Arc::new(policy), Arc::new(Keys::default()), store, metrics.clone()).decide();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = admit_listen::serve(listener, router, Limits::default(), CancellationToken::new());
        let serving = AbortOnDropHandle::new(tokio::spawn(serving));
        let grpc = RateLimitServiceClient::connect(format!("http://{address}")).await.unwrap();
        Self { address, metrics, grpc, _serving: serving }
    }

    async fn ask(&self, request: RateLimitRequest) -> RateLimitResponse {
        self.grpc.clone().should_rate_limit(request).await.unwrap().into_inner()
    }

    async fn json(&self, body: Value) -> (u16, http::HeaderMap, Value) {
        let client = Client::builder(TokioExecutor::new()).build_http::<String>();
        let request = http::Request::post(format!("http://{}/json", self.address));
        let request = request.header("content-type", "application/json").body(body.to_string()).unwrap();
        let (head, body) = client.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), head.headers, serde_json::from_slice(&body).unwrap())
    }
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries = entries.iter().map(|(key, value)| Entry { key: (*key).into(), value: (*value).into() });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

fn request<const N: usize>(descriptors: [RateLimitDescriptor; N]) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".into(), descriptors: descriptors.into(), hits_addend: 0 }
}

fn with_hits(hits: u64, entries: &[(&str, &str)]) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor(entries) }
}

fn codes(response: &RateLimitResponse) -> (Code, Vec<Code>) {
    (response.overall_code(), response.statuses.iter().map(DescriptorStatus::code).collect())
}

fn left(response: &RateLimitResponse) -> Vec<u32> {
    response.statuses.iter().map(|status| status.limit_remaining).collect()
}

fn header<'r>(response: &'r RateLimitResponse, name: &str) -> Option<&'r str> {
    let mut headers = response.response_headers_to_add.iter();
    headers.find(|header| header.key == name).map(|header| header.value.as_str())
}

#[tokio::test]
async fn all_descriptors_of_a_request_are_taken_or_none() {
    let service = Service::start(POLICY).await;
    let both = || request([descriptor(&[("user", "ann")]), descriptor(&[("path", "/a")])]);
    for expected in [[1, 2], [0, 1]] {
        let response = service.ask(both()).await;
        assert_eq!(codes(&response), (Code::Ok, vec![Code::Ok, Code::Ok]));
        assert_eq!(left(&response), expected);
    }
    let refused = service.ask(both()).await;
    assert_eq!(codes(&refused), (Code::OverLimit, vec![Code::OverLimit, Code::Ok]));
    assert_eq!(left(&refused), [0, 1], "the other descriptor was not charged");
    assert_eq!(header(&refused, "retry-after"), Some("1800"));
    assert_eq!(header(&refused, "ratelimit"), Some("\"users\";r=0;t=1800"));
    assert_eq!(header(&refused, "content-type"), Some("application/problem+json"));
    let problem: Value = serde_json::from_slice(&refused.raw_body).unwrap();
    assert_eq!((&problem["status"], &problem["violated-policies"]), (&json!(429), &json!(["users"])));
    let reset = refused.statuses[0].duration_until_reset.unwrap();
    assert!((1_790..=1_800).contains(&reset.seconds), "{reset:?}");
}

#[tokio::test]
async fn limits_are_told_where_a_unit_tells_them() {
    let service = Service::start(POLICY).await;
    let response =
        service.ask(request([descriptor(&[("user", "ann")]), descriptor(&[("path", "/a")])])).await;
    let limit = response.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!((limit.name.as_str(), limit.requests_per_unit, limit.unit()), ("users", 2, Unit::Hour));
    assert_eq!(response.statuses[1].current_limit, None, "3 in 10 seconds");
    assert_eq!(header(&response, "ratelimit-policy"), Some("\"users\";q=2;w=3600, \"paths\";q=3;w=10"));
    assert!(response.raw_body.is_empty());
}

#[tokio::test]
async fn a_descriptors_hits_stand_before_those_of_the_request_and_none_is_a_look() {
    let service = Service::start(POLICY).await;
    let hits = |hits_addend, descriptor| RateLimitRequest { hits_addend, ..request([descriptor]) };
    let one = |of: &'static str| descriptor(&[("bulk", of)]);
    assert_eq!(left(&service.ask(hits(0, one("a"))).await), [90], "0 is 1, times the cost of the budget");
    assert_eq!(left(&service.ask(hits(2, one("a"))).await), [70]);
    assert_eq!(left(&service.ask(hits(9, with_hits(3, &[("bulk", "a")]))).await), [40]);
    let look = || request([with_hits(0, &[("bulk", "a")])]);
    for _ in 0..2 {
        assert_eq!(left(&service.ask(look()).await), [40]);
    }
    assert_eq!(codes(&service.ask(hits(5, one("a"))).await).0, Code::OverLimit);
    assert_eq!(codes(&service.ask(hits(4, one("a"))).await).0, Code::Ok);
    // A look that does not fit refuses what is asked with it, which takes nothing then.
    let beside = request([with_hits(0, &[("bulk", "a")]), descriptor(&[("bulk", "b")])]);
    let response = service.ask(beside).await;
    assert_eq!(codes(&response), (Code::OverLimit, vec![Code::OverLimit, Code::Ok]));
    assert_eq!(left(&service.ask(request([with_hits(0, &[("bulk", "b")])])).await), [100]);
    let never = service.ask(hits(11, one("c"))).await;
    assert_eq!((codes(&never).0, header(&never, "retry-after")), (Code::OverLimit, None));
}

#[tokio::test]
async fn what_the_policy_does_not_name_is_free_and_shadows_refuse_nobody() {
    let service = Service::start(POLICY).await;
    for _ in 0..5 {
        let free = [
            descriptor(&[("user", "root")]),
            descriptor(&[("user", "ann"), ("path", "/a")]),
            descriptor(&[("user", "ann"), ("user", "bob")]),
            descriptor(&[]),
        ];
        let response = service.ask(request(free)).await;
        assert_eq!(codes(&response), (Code::Ok, vec![Code::Ok; 4]));
    }
    let elsewhere = RateLimitRequest { domain: "other".into(), ..request([descriptor(&[("user", "ann")])]) };
    assert_eq!(codes(&service.ask(elsewhere).await), (Code::Ok, vec![Code::Ok]));
    for _ in 0..2 {
        let response = service.ask(request([descriptor(&[("user", "bob")])])).await;
        assert_eq!(response.overall_code(), Code::Ok, "the shadow of 1/hour refuses nobody");
    }
    let metrics = service.metrics.encode().unwrap();
    let refused = "admit_decisions_total{budget=\"watched\",mode=\"shadow\",outcome=\"refused\"} 1";
    assert!(metrics.contains(refused), "{metrics}");
}

#[tokio::test]
async fn what_is_out_of_bounds_is_an_invalid_argument() {
    let service = Service::start(POLICY).await;
    let one = || descriptor(&[("path", "/a")]);
    let negative = RateLimitDescriptor { is_negative_hits: true, ..one() };
    let many: Vec<(String, String)> = (0..33).map(|i| (i.to_string(), String::new())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    for wrong in [
        RateLimitRequest { domain: String::new(), ..request([one()]) },
        RateLimitRequest { domain: "d".repeat(1_025), ..request([one()]) },
        request([]),
        request([(); 65].map(|()| one())),
        request([descriptor(&many)]),
        request([descriptor(&[(&"x".repeat(1_025), "/a")])]),
        request([negative]),
    ] {
        let status = service.grpc.clone().should_rate_limit(wrong).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
    }
    let large =
        request([(); 64].map(|()| descriptor(&[("path", &"x".repeat(4_096)), ("b", &"x".repeat(4_096))])));
    let status = service.grpc.clone().should_rate_limit(large).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::OutOfRange, "{status:?}");
}

#[tokio::test]
async fn json_says_the_same() {
    let service = Service::start(POLICY).await;
    let of = |name: &str| json!({"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": name}]}], "hitsAddend": 2});
    let (status, headers, body) = service.json(of("ann")).await;
    assert_eq!((status, &headers["ratelimit"]), (200, &"\"users\";r=0;t=3600".parse().unwrap()));
    assert_eq!((&body["overallCode"], &body["statuses"][0]["code"]), (&json!("OK"), &json!("OK")));
    let limit = json!({"name": "users", "requestsPerUnit": 2, "unit": "HOUR"});
    assert_eq!(body["statuses"][0]["currentLimit"], limit);
    let (status, headers, body) = service.json(of("ann")).await;
    assert_eq!((status, &headers["retry-after"]), (429, &"3600".parse().unwrap()));
    assert_eq!(body["overallCode"], "OVER_LIMIT");
    let look = json!({"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "bob"}], "hits_addend": "0"}]});
    assert_eq!(service.json(look).await.2["statuses"][0]["limitRemaining"], 2);
    let (status, _, body) = service.json(json!({"domain": "edge", "descriptors": [{"items": []}]})).await;
    assert_eq!((status, &body["pointer"]), (400, &json!("/descriptors/0/items")));
    assert_eq!(service.json(json!({"domain": "", "descriptors": [{}]})).await.0, 400);
}

#[tokio::test]
async fn calls_need_a_token_where_there_are_some_and_health_needs_none() {
    let digest = HEXLOWER.encode(&Sha256::digest("t1"));
    let service = Service::start(&format!("decision_tokens = [\"{digest}\"]\n{POLICY}")).await;
    let asked = || request([descriptor(&[("user", "ann")])]);
    let status = service.grpc.clone().should_rate_limit(asked()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unauthenticated);
    let mut allowed = tonic::Request::new(asked());
    allowed.metadata_mut().insert("authorization", "Bearer t1".parse().unwrap());
    assert!(service.grpc.clone().should_rate_limit(allowed).await.is_ok());
    assert_eq!(service.json(json!({})).await.0, 401);
    let channel = Channel::from_shared(format!("http://{}", service.address)).unwrap().connect().await;
    let mut health = HealthClient::new(channel.unwrap());
    let serving = health.check(HealthCheckRequest { service: String::new() }).await.unwrap();
    assert_eq!(serving.into_inner().status, 1);
    let unknown = health.check(HealthCheckRequest { service: "x".into() }).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn ext_authz_decides_as_authorize_does() {
    let service = Service::start(ROUTES).await;
    let channel = Channel::from_shared(format!("http://{}", service.address)).unwrap().connect().await;
    let client = AuthorizationClient::new(channel.unwrap());
    let check_path = async |method: &str, path: &str, client_address: &str| {
        let http = HttpRequest {
            method: method.into(),
            path: path.into(),
            headers: [("x-user", "ann"), (":authority", "a")].map(|(n, v)| (n.into(), v.into())).into(),
            ..HttpRequest::default()
        };
        let socket = SocketAddress { address: client_address.into(), ..SocketAddress::default() };
        let address = Address { address: Some(address::Address::SocketAddress(socket)) };
        let attributes = AttributeContext {
            source: Some(attribute_context::Peer { address: Some(address), ..Default::default() }),
            request: Some(attribute_context::Request { http: Some(http), ..Default::default() }),
            ..AttributeContext::default()
        };
        client
            .clone()
            .check(CheckRequest { attributes: Some(attributes) })
            .await
            .map(tonic::Response::into_inner)
    };
    let check =
        async |method: &str, client_address: &str| check_path(method, "/v1/jobs?x=1", client_address).await;
    let name = |option: &HeaderValueOption| option.header.clone().unwrap().key;
    let allowed = check("POST", "203.0.113.9").await.unwrap();
    let Some(HttpResponse::OkResponse(ok)) = allowed.http_response else { panic!("{allowed:?}") };
    assert_eq!(allowed.status.unwrap().code, 0);
    assert!(ok.response_headers_to_add.iter().any(|option| name(option) == "ratelimit"));

    let refused = check("POST", "203.0.113.9").await.unwrap();
    let Some(HttpResponse::DeniedResponse(denied)) = refused.http_response else { panic!("{refused:?}") };
    assert_eq!((refused.status.unwrap().code, denied.status.unwrap().code), (7, 429));
    assert!(denied.headers.iter().any(|option| name(option) == "retry-after"));
    assert!(denied.body.contains("\"violated-policies\":[\"hourly\"]"), "{}", denied.body);

    for (method, client) in [("POST", "203.0.113.10"), ("GET", "203.0.113.9")] {
        let response = check(method, client).await.unwrap().http_response;
        assert!(matches!(response, Some(HttpResponse::OkResponse(_))), "{response:?}");
    }
    // No decision was told about these, and Envoy may let such requests pass.
    for (method, path) in [
        ("NO METHOD", "/v1/jobs"),
        ("POST", "/v1/<jobs>"),
        ("POST", "v1"),
        ("POST", "/v1/../jobs"),
        ("POST", ""),
    ] {
        let denied = check_path(method, path, "203.0.113.9").await.unwrap().http_response;
        let Some(HttpResponse::DeniedResponse(denied)) = denied else { panic!("{denied:?}") };
        assert_eq!(denied.status.unwrap().code, 400, "{method} {path}");
    }
    let nothing = CheckRequest { attributes: Some(AttributeContext::default()) };
    let status = client.clone().check(nothing).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
}

/// Shadows were taken beside the bound on charges: one request could ask the store for as many as 64 descriptors have.
#[tokio::test]
async fn shadows_count_among_the_charges_of_a_request() {
    let service = Service::start(POLICY).await;
    let of = |count: usize| {
        let descriptors = (0..count).map(|i| descriptor(&[("user", &format!("user-{i}"))])).collect();
        RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }
    };
    assert_eq!(service.ask(of(32)).await.overall_code(), Code::Ok);
    let status = service.grpc.clone().should_rate_limit(of(33)).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(status.message().contains("66 charges"), "{status:?}");
}

/// A client that sent `Content-Type: application/grpc` was refused with the HTTP status 200, which was read as leave to run.
#[tokio::test]
async fn ext_authz_denies_whatever_content_type_a_client_claims() {
    let service = Service::start(ROUTES).await;
    let channel = Channel::from_shared(format!("http://{}", service.address)).unwrap().connect().await;
    let mut client = AuthorizationClient::new(channel.unwrap());
    for expected in [0, 7] {
        let http = HttpRequest {
            method: "POST".into(),
            path: "/v1/jobs".into(),
            headers: [("content-type".into(), "application/grpc".into())].into(),
            ..HttpRequest::default()
        };
        let request = attribute_context::Request { http: Some(http), ..Default::default() };
        let attributes = AttributeContext { request: Some(request), ..AttributeContext::default() };
        let answer = client.check(CheckRequest { attributes: Some(attributes) }).await.unwrap().into_inner();
        assert_eq!(answer.status.unwrap().code, expected);
    }
}

/// A client that made its path or header long enough was not decided on, and Envoy let it pass.
#[tokio::test]
async fn a_value_of_any_length_has_a_bucket() {
    let service = Service::start(POLICY).await;
    let long = "x".repeat(60 << 10);
    let of = || request([descriptor(&[("user", &long)])]);
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        let answer = service.grpc.clone().should_rate_limit(of()).await.unwrap().into_inner();
        assert_eq!(answer.overall_code(), expected);
    }
    let zeros = request([descriptor(&[("user", "00000000-0000-0000-0000-000000000000")])]);
    assert!(service.grpc.clone().should_rate_limit(zeros).await.is_ok());
}
