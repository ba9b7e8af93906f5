//! A client that sends exactly what it is told to, and checks every problem document it gets.

use std::net::SocketAddr;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// A request that is being put together.
pub(crate) struct Call {
    address: SocketAddr,
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Bytes,
}

/// An answer, read whole.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    path: String,
}

impl Call {
    pub(crate) fn new(address: SocketAddr, method: Method, path: impl Into<String>) -> Self {
        Self { address, method, path: path.into(), headers: Vec::new(), body: Bytes::new() }
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn bearer(self, credential: &str) -> Self {
        self.header("authorization", format!("Bearer {credential}"))
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) async fn send(self) -> Reply {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut request = Request::builder().method(self.method).uri(&self.path).header("host", "fleet.test");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let response = sender.send_request(request.body(Full::new(self.body)).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        connection.abort();
        let path = self.path.split('?').next().unwrap_or_default().to_owned();
        Reply { status: head.status, headers: head.headers, body, path }
    }
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.header("retry-after").map(|seconds| seconds.parse().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Checks that this is the problem document of `code`, with every member that all of them have.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem = self.json();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], status);
        assert_eq!(problem["instance"], self.path.as_str());
        assert_eq!(problem["correlation_id"].as_str(), self.header("x-correlation-id"));
        for member in ["type", "title", "detail", "correlation_id"] {
            assert!(problem[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {problem}");
        }
        if status == 401 {
            assert_eq!(self.header("www-authenticate"), Some("Bearer"));
        }
        problem
    }

    #[track_caller]
    pub(crate) fn is_ok(&self, status: u16) -> &Self {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.body));
        assert!(self.header("x-correlation-id").is_some());
        self
    }
}

/// The claims of a token, after its signature was checked against the key that is published in the log.
pub(crate) fn verified_claims(token: &str, public_key: &str) -> Value {
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let key = BASE64_URL_SAFE_NO_PAD.decode(public_key).unwrap();
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap();
    ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, key)
        .verify(signed.as_bytes(), &signature)
        .unwrap();
    let (header, claims) = signed.split_once('.').unwrap();
    let part =
        |part: &str| serde_json::from_slice::<Value>(&BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap();
    assert_eq!(part(header)["alg"], "EdDSA");
    part(claims)
}
