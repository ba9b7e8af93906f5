//! A program in this process, with a policy file that a test may change.

#![allow(dead_code)] // Each test file uses some of it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use admit_listen::Limits;
use admit_server::metrics::Metrics;
use admit_server::reload::Running;
use admit_server::source::Source;
use admit_store::AnyStore;
use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// A budget `x` for `GET /`, by nobody in particular.
pub(crate) fn budget(rate: &str) -> String {
    format!(
        "[budgets.x]\nrate = \"{rate}\"\nby = \"const:all\"\n[[routes]]\nmatch = \"GET /\"\nbudgets = [\"x\"]\n"
    )
}

/// An upstream that counts the connections made to it.
pub(crate) async fn upstream(router: Router, connections: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.fetch_add(1, Ordering::SeqCst);
            let service = hyper_util::service::TowerToHyperService::new(router.clone());
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(hyper_util::rt::TokioIo::new(stream), service));
        }
    });
    address
}

/// Where the program listens, and a client of it.
#[derive(Clone)]
pub(crate) struct Server {
    address: SocketAddr,
    client: Client<HttpConnector, Body>,
    _serving: Arc<AbortOnDropHandle<()>>,
}

impl Server {
    pub(crate) async fn get(&self, path: &str) -> Result<StatusCode, hyper_util::client::legacy::Error> {
        let request =
            Request::get(format!("http://{}{path}", self.address)).header("x-api-key", "key-of-acme");
        let response = self.client.request(request.body(Body::empty()).unwrap()).await?;
        let status = response.status();
        response.into_body().collect().await.unwrap();
        Ok(status)
    }

    pub(crate) fn get_owned(
        &self,
        path: &'static str,
    ) -> impl Future<Output = Result<StatusCode, hyper_util::client::legacy::Error>> + use<> {
        let server = self.clone();
        async move { server.get(path).await }
    }
}

pub(crate) struct Place {
    pub(crate) directory: TempDir,
    pub(crate) running: Running,
    pub(crate) server: Server,
    store: String,
    _reloads: AbortOnDropHandle<()>,
}

impl Place {
    /// Without an upstream, in front of one that says yes.
    pub(crate) async fn start(store: &str, members: &str) -> Self {
        Self::with_files(store, members, &[]).await
    }

    pub(crate) async fn with_files(store: &str, members: &str, files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("admit.toml"), Self::policy_of(store, members)).unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        Self { store: store.to_owned(), ..Self::at(directory).await }
    }

    /// With the policy `admit.toml` in a directory.
    pub(crate) async fn at(directory: TempDir) -> Self {
        let source = Source::from(directory.path().join("admit.toml"));
        let read = source.read();
        let (policy, _) = read.policy.as_ref().unwrap();
        let store = AnyStore::open(policy.server.store.reveal(), policy.rules().unwrap()).await.unwrap();
        let (running, reloader) = Running::start(source, read, store, Metrics::default()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving =
            admit_listen::serve(listener, running.answers(), Limits::default(), CancellationToken::new());
        let serving = Arc::new(AbortOnDropHandle::new(tokio::spawn(serving)));
        let client = Client::builder(TokioExecutor::new()).build_http();
        let reloads = reloader.store_interval(Duration::from_millis(200)); // What waits for the store need not wait long.
        Self {
            directory,
            running,
            server: Server { address, client, _serving: serving },
            store: "memory:".to_owned(),
            _reloads: AbortOnDropHandle::new(tokio::spawn(reloads.run(CancellationToken::new()))),
        }
    }

    pub(crate) fn policy_of(store: &str, members: &str) -> String {
        format!("store = \"{store}\"\n{members}")
    }

    pub(crate) fn policy(&self, members: &str) -> String {
        Self::policy_of(&self.store, members)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).unwrap();
    }

    /// Asks a number of times, and tells how often it was granted.
    pub(crate) async fn granted(&self, asks: usize) -> usize {
        let mut granted = 0;
        for _ in 0..asks {
            match self.server.get("/authorize").await.unwrap() {
                StatusCode::OK => granted += 1,
                StatusCode::TOO_MANY_REQUESTS => {}
                other => panic!("{other}"),
            }
        }
        granted
    }

    /// The budget `x` that is in force.
    pub(crate) fn budget(&self) -> String {
        let in_force = self.running.in_force();
        let budget = in_force.policy.budgets.iter().find(|budget| budget.scope.as_str() == "x").unwrap();
        budget.budget.to_string()
    }

    /// Waits until this budget is in force.
    pub(crate) async fn in_force(&self, budget: &str) {
        self.until(budget, || self.budget() == budget).await;
    }

    /// Waits until a reload had this outcome.
    pub(crate) async fn reloads(&self, outcome: &str) {
        self.reloads_at_least(outcome, 1).await;
    }

    pub(crate) async fn reloads_at_least(&self, outcome: &str, count: u64) {
        let line = format!("admit_reloads_total{{outcome=\"{outcome}\"}} ");
        self.until(outcome, || {
            let metrics = self.running.metrics().encode().unwrap();
            let found = metrics.lines().find_map(|found| found.strip_prefix(&line)?.parse::<u64>().ok());
            found.is_some_and(|found| found >= count)
        })
        .await;
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let mut tick = tokio::time::interval(Duration::from_millis(10));
        let waiting = async {
            while !is_so() {
                tick.tick().await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        waited.unwrap_or_else(|_| panic!("{what}: {} {:?}", self.budget(), self.running.not_in_force()));
    }
}
