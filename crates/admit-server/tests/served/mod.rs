//! Servers of a test's own, the gateway among them.
#![allow(unreachable_pub, dead_code)] // Each test takes what it needs.

use std::net::SocketAddr;
use std::sync::Arc;

use admit_listen::{Answers, Limits, Tls, Workers};
use admit_server::Front;
use admit_server::bounds::Bounds;
use admit_server::gateway::Gateway;
use admit_server::metrics::Metrics;
use admit_server::policy::{Keys, Policy};
use admit_store::AnyStore;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// A server of its own, which ends with this.
pub struct Server {
    pub address: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

impl Server {
    pub async fn start(router: Router) -> Self {
        Self::start_tls(router, None).await
    }

    pub async fn start_tls(answers: impl Into<Answers>, tls: Option<Tls>) -> Self {
        let answers = answers.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (limits, never) = (Limits::default(), CancellationToken::new());
        let workers = Workers::start().unwrap(); // As the program has them.
        let serving = async move {
            admit_listen::serve_tls(listener, answers, tls, limits, never, Some(&workers)).await;
        };
        Self { address, _serving: AbortOnDropHandle::new(tokio::spawn(serving)) }
    }

    /// The gateway with this policy, in front of `upstream`.
    pub async fn gateway(upstream: SocketAddr, policy: &str) -> Self {
        Self::gateway_with(&format!("upstream = \"http://{upstream}\"\n{policy}"), Keys::default()).await.0
    }

    /// The gateway with this policy, which names the upstreams.
    pub async fn gateway_with(policy: &str, keys: Keys) -> (Self, Metrics) {
        Self::gateway_within(policy, keys, Bounds::default()).await
    }

    /// The same, within bounds.
    pub async fn gateway_within(policy: &str, keys: Keys, bounds: Bounds) -> (Self, Metrics) {
        let policy = Policy::parse("test", policy);
        let policy = policy.unwrap_or_else(|errors| panic!("{:?}", errors.problems()));
        let store = AnyStore::open("memory:", policy.rules().unwrap()).await.unwrap();
        let metrics = Metrics::default();
        let gateway = Gateway::new(&policy, metrics.clone()).unwrap().unwrap();
        let front = Front::new(Arc::new(policy), Arc::new(keys), store, metrics.clone()).within(bounds);
        (Self::start(front.in_front_of(gateway)).await, metrics)
    }

    pub async fn send(&self, request: http::request::Builder, path: &str, body: impl Into<Body>) -> Reply {
        let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
        let uri = format!("http://{}{path}", self.address);
        let response = client.request(request.uri(uri).body(body.into()).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        Reply { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(Request::builder(), path, Body::empty()).await
    }
}

pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{:?}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// Tells what it got: the method, the path with its query, the headers, and how many bytes the body had.
pub async fn echo(request: Request) -> axum::Json<Value> {
    let (head, body) = request.into_parts();
    let length = body.collect().await.unwrap().to_bytes().len();
    let headers: Vec<_> =
        head.headers.iter().map(|(name, value)| json!([name.as_str(), value.to_str().unwrap()])).collect();
    axum::Json(
        json!({"method": head.method.as_str(), "path": head.uri.to_string(), "headers": headers, "length": length}),
    )
}

pub async fn upstream() -> Server {
    Server::start(Router::new().fallback(any(echo))).await
}

pub const OPEN: &str = "[budgets.x]\nrate = \"1000/second\"\nby = \"ip\"";
