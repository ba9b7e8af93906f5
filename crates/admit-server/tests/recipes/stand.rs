//! A service, the `admit` program and a proxy, wired as a page of the guide says, on other ports.

use std::process::Command;
use std::time::Duration;

use admit_testbed::{Daemon, Home, Port, Postgres, Proxy, ProxyServer, Shutdown};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use http_body_util::BodyExt;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::page;

/// The ports in the guide: the proxy's, the program's, its admin's and the service's.
const PORTS: [u16; 4] = [8000, 8080, 8082, 3000];

pub(crate) struct Stand {
    proxy: u16,
    postgres: Postgres,
    admit: Daemon,
    client: Client<HttpConnector, Body>,
    // In the order in which they are to go.
    _proxy: ProxyServer,
    _home: Home,
    _ports: Vec<Port>,
}

/// An answer, whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Stand {
    pub(crate) async fn new(page: &str, policy: &str, proxy: Proxy, main_file: &str) -> Self {
        let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service_port = service.local_addr().unwrap().port();
        tokio::spawn(async { axum::serve(service, Router::new().fallback(echo)).await });
        let ports: Vec<Port> = (0..3).map(|_| Port::free().unwrap()).collect();
        let numbers = [ports[0].number(), ports[1].number(), ports[2].number(), service_port];
        let files: Vec<(String, String)> =
            page::files(page).into_iter().map(|(name, text)| (name, with_ports(&text, numbers))).collect();

        let postgres = Postgres::fast().unwrap();
        let home = Home::new("serve").unwrap();
        let policy = files.iter().find(|(name, _)| name == policy).unwrap();
        std::fs::write(home.path().join(&policy.0), &policy.1).unwrap();
        let mut admit = Command::new(env!("CARGO_BIN_EXE_admit"));
        let [listen, admin] = [numbers[1], numbers[2]].map(|port| format!("127.0.0.1:{port}"));
        admit.current_dir(home.path()).env_clear();
        admit.args(["serve", policy.0.as_str(), "--listen", &listen, "--admin", &admin]);
        admit.args(["--store", &postgres.url()]);
        let admit = Daemon::start(&home, admit, "\"listening\"").unwrap();
        let running = proxy.start(main_file, &files).unwrap();
        let client = Client::builder(TokioExecutor::new()).build_http();
        let stand =
            Self { proxy: numbers[0], postgres, admit, client, _proxy: running, _home: home, _ports: ports };
        stand.wait_for_routes().await;
        stand
    }

    /// Traefik listens some milliseconds before it knows its routes, HAProxy's workers after it says that it runs.
    async fn wait_for_routes(&self) {
        let free = async || {
            let request = Request::get(self.url("/free")).body(Body::empty()).unwrap();
            self.client.request(request).await.is_ok_and(|response| response.status() == 200)
        };
        let served = timeout(Duration::from_secs(30), async {
            while !free().await {
                tokio::task::yield_now().await;
            }
        });
        served.await.expect("the proxy serves");
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.proxy)
    }

    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: &'static str) -> Answer {
        let mut request = Request::post(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.client.request(request.body(Body::from(body)).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// From now on requests come from another address.
    pub(crate) fn comes_from_elsewhere(&mut self) {
        let mut connector = HttpConnector::new();
        connector.set_local_address(Some([127, 0, 0, 2].into()));
        self.client = Client::builder(TokioExecutor::new()).build(connector);
    }

    pub(crate) fn stop_the_store(&mut self) {
        self.postgres.stop(Shutdown::Immediate).unwrap();
    }

    pub(crate) fn stop_the_decision_service(&mut self) {
        self.admit.end(rustix::process::Signal::KILL).unwrap();
    }
}

/// The guide's text with these ports in place of its own.
fn with_ports(text: &str, ports: [u16; 4]) -> String {
    let between = |i: usize| format!("\u{1}{i}\u{1}"); // No port that was put in may be taken for one to be replaced.
    let marked = PORTS
        .iter()
        .enumerate()
        .fold(text.to_owned(), |text, (i, port)| text.replace(&port.to_string(), &between(i)));
    ports.iter().enumerate().fold(marked, |text, (i, port)| text.replace(&between(i), &port.to_string()))
}

/// What it was sent.
async fn echo(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    format!("{} {} {}", parts.method, parts.uri, String::from_utf8_lossy(&body)).into_response()
}
