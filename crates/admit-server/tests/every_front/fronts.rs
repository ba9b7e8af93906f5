//! The fronts, and how each is asked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use admit::{Rules, Scope};
use admit_listen::{Limits, Peer};
use admit_server::Front;
use admit_server::gateway::Gateway;
use admit_server::metrics::Metrics;
use admit_store::AnyStore;
use admit_tower::{BudgetLayer, IdempotencyLayer, Idempotent, Limiter};
use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use http::request::{Builder, Parts};
use http::{HeaderMap, HeaderName, Request};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt;

use crate::envoy_front::{EnvoyFront, EnvoyTold};
use crate::policy::{ENVOY, HTTP, TOKEN, hex, keys, parsed, quotas};
use crate::service::{self, ORDERED};

/// What is asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ask {
    pub(crate) user: String,
    pub(crate) team: String,
    pub(crate) cost: f64,
    pub(crate) api_key: Option<String>,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) payload: String,
    /// What the client says that its body is; fronts that are asked about requests are told so too.
    pub(crate) content_type: Option<&'static str>,
}

/// What is told.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

/// Each front with a store of its own, so that none takes from another's buckets.
pub(crate) struct Fronts {
    middleware: Router,
    gateway: Router,
    decisions: Router,
    authorize: Router,
    url: String,
    hangs: Arc<Notify>,
    grpc: EnvoyFront,
    json: EnvoyFront,
    _upstream: AbortOnDropHandle<()>,
}

impl Fronts {
    pub(crate) async fn start(url: &str) -> Self {
        let hangs = Arc::new(Notify::new());
        let service = service::router(hangs.clone());
        let (address, upstream) = listen(service.clone()).await;
        let protected = format!("upstream = \"http://{address}\"\n{HTTP}");
        Self {
            middleware: middleware(url, service).await,
            gateway: front(url, &protected).await,
            decisions: front(url, HTTP).await,
            authorize: front(url, HTTP).await,
            url: url.to_owned(),
            hangs,
            grpc: EnvoyFront::start(front(url, ENVOY).await).await,
            json: EnvoyFront::start(front(url, ENVOY).await).await,
            _upstream: upstream,
        }
    }

    /// The last answer of each front of HTTP to some asks.
    pub(crate) async fn ask_http(&self, asks: &[Ask]) -> Vec<(&'static str, Told)> {
        let mut all = Vec::new();
        for front in ["middleware", "gateway", "decision API", "forward-auth"] {
            let mut last = None;
            for ask in asks {
                last = Some(match front {
                    "middleware" => send(&self.middleware, of(ask, Request::get("/work")), "").await,
                    "gateway" => send(&self.gateway, of(ask, Request::get("/work")), "").await,
                    "decision API" => self.take(ask).await,
                    _ => self.authorized(ask, "GET", "/work").await,
                });
            }
            all.push((front, last.unwrap()));
        }
        all
    }

    async fn take(&self, ask: &Ask) -> Told {
        let hourly = json!({"budget": "hourly", "key": ask.user, "cost": ask.cost});
        let shared = json!({"budget": "shared", "key": ask.team});
        call(&self.decisions, "/v1/take", &json!({"charges": [hourly, shared]})).await
    }

    async fn authorized(&self, ask: &Ask, method: &str, path: &str) -> Told {
        let request = Request::get("/authorize").header("x-forwarded-method", method);
        send(&self.authorize, of(ask, request.header("x-forwarded-uri", path)), "").await
    }

    /// What forward-auth says to an order.
    pub(crate) async fn forward_auth(&self, ask: &Ask) -> Told {
        self.authorized(ask, "POST", "/orders").await
    }

    /// The last answer over gRPC, and that at `/json`.
    pub(crate) async fn ask_envoy(&self, asks: &[Ask]) -> (EnvoyTold, EnvoyTold) {
        let (mut grpc, mut json) = (None, None);
        for ask in asks {
            let descriptors = [("user", &ask.user, ask.cost as u64), ("team", &ask.team, 1)];
            grpc = Some(self.grpc.over_grpc(&descriptors, None).await);
            json = Some(self.json.at_json(&descriptors).await);
        }
        (grpc.unwrap(), json.unwrap())
    }

    /// The last answer to some orders of the fronts that can keep keys. An order with the key `hang` is never answered, and
    /// what follows it is sent once it runs.
    pub(crate) async fn keyed(&self, asks: &[Ask]) -> Vec<(&'static str, Told)> {
        let mut all = Vec::new();
        for (front, router) in [("middleware", &self.middleware), ("gateway", &self.gateway)] {
            let (last, before) = asks.split_last().unwrap();
            let mut running = Vec::new();
            for ask in before {
                let (router, ask) = (router.clone(), ask.clone());
                let hangs = ask.idempotency_key.as_deref() == Some("hang");
                let order = tokio::spawn(async move { order(&router, &ask).await });
                match hangs {
                    true => {
                        self.hangs.notified().await;
                        running.push(AbortOnDropHandle::new(order));
                    }
                    false => assert_eq!(order.await.unwrap().status, 201),
                }
            }
            all.push((front, order(router, last).await));
        }
        let mut last = None;
        for ask in asks {
            last = Some(self.claimed(ask).await);
        }
        all.push(("decision API", last.unwrap()));
        all
    }

    /// What a service answers that asks the decision API for leave to run an order.
    async fn claimed(&self, ask: &Ask) -> Told {
        let key = ask.idempotency_key.as_deref().unwrap();
        let claim =
            json!({"tenant": ask.user, "operation": "POST /orders", "key": key, "fingerprint": ask.payload});
        let claimed = call(&self.decisions, "/v1/idempotency/claim", &claim).await;
        if claimed.status != 200 {
            return claimed; // Passed on as it is.
        }
        let outcome: Value = serde_json::from_str(&claimed.body).unwrap();
        let (status, content_type, body) = ORDERED;
        if outcome["outcome"] == "run" && key != "hang" {
            let complete = json!({"ticket": outcome["ticket"], "status": status, "body": body,
                "headers": {"content-type": content_type}});
            let completed = call(&self.decisions, "/v1/idempotency/complete", &complete).await;
            assert_eq!(completed.body, r#"{"recorded":"response"}"#);
        }
        let headers = outcome["headers"].as_object().cloned().unwrap_or_default();
        let header = |(name, value): (&String, &Value)| {
            (name.parse::<HeaderName>().unwrap(), value.as_str().unwrap().parse().unwrap())
        };
        Told {
            status: outcome["status"].as_u64().unwrap_or(status.into()) as u16,
            headers: headers.iter().map(header).collect(),
            body: outcome["body"].as_str().unwrap_or(body).to_owned(),
        }
    }

    /// What the fronts that know API keys say to a caller.
    pub(crate) async fn ask_known(&self, ask: &Ask) -> Vec<(&'static str, Told)> {
        let gateway = send(&self.gateway, of(ask, Request::get("/known")), "").await;
        vec![("gateway", gateway), ("forward-auth", self.authorized(ask, "GET", "/known").await)]
    }

    /// What the fronts that take decision tokens say to who has none.
    pub(crate) async fn ask_without_token(&self) -> (Told, String) {
        let tokens = format!("decision_tokens = [\"{}\"]", hex(TOKEN));
        let decisions = front(&self.url, &format!("{tokens}\n{HTTP}")).await;
        let told = call(&decisions, "/v1/take", &json!({"budget": "shared", "key": "k"})).await;
        let envoy = EnvoyFront::start(front(&self.url, &format!("{tokens}\n{ENVOY}")).await).await;
        let user = "ann".to_owned();
        let allowed = envoy.over_grpc(&[("user", &user, 1)], Some(TOKEN)).await;
        assert_eq!(allowed.code, "OK");
        (told, envoy.over_grpc(&[("user", &user, 1)], None).await.code)
    }

    /// Whether each front lets a request of a budget run that says so while the store is down.
    pub(crate) async fn ask_lenient(&self) -> Vec<(&'static str, bool)> {
        let ask = Ask { user: "ann".into(), ..Ask::default() };
        let get = || of(&ask, Request::get("/lenient"));
        let take = call(&self.decisions, "/v1/take", &json!({"budget": "lenient", "key": "ann"})).await;
        let taken: Value = serde_json::from_str(&take.body).unwrap();
        let grpc = self.grpc.over_grpc(&[("lenient", &ask.user, 1)], None).await;
        vec![
            ("middleware", send(&self.middleware, get(), "").await.status == 200),
            ("gateway", send(&self.gateway, get(), "").await.status == 200),
            ("decision API", taken["granted"] == true && taken["charged"] == false),
            ("forward-auth", self.authorized(&ask, "GET", "/lenient").await.status == 200),
            ("gRPC", grpc.code == "OK"),
            ("/json", self.json.at_json(&[("lenient", &ask.user, 1)]).await.code == "OK"),
        ]
    }

    /// Whether gRPC health says that the service serves.
    pub(crate) async fn is_serving(&self) -> bool {
        self.grpc.is_serving().await
    }
}

async fn front(url: &str, policy: &str) -> Router {
    let policy = parsed(policy);
    let store = AnyStore::open(url, policy.rules().unwrap()).await.unwrap();
    let metrics = Metrics::default();
    let gateway = Gateway::new(&policy, metrics.clone()).unwrap();
    let front = Front::new(policy, keys(), store, metrics);
    let router = match gateway {
        Some(gateway) => front.in_front_of(gateway),
        None => front.decide(),
    };
    router.layer(Extension(Peer(SocketAddr::from(([127, 0, 0, 1], 7)))))
}

async fn middleware(url: &str, service: Router) -> Router {
    let scopes = ["hourly", "shared", "lenient"].map(Scope::from_static);
    let store = AnyStore::open(url, Rules::new(scopes).unwrap()).await.unwrap();
    let once = IdempotencyLayer::new(store.clone(), |request: &Parts| {
        let tenant = request.headers.get("x-user")?.to_str().ok()?;
        (request.uri.path() == "/orders")
            .then(|| Idempotent::by_header(tenant).wait(Duration::from_millis(20)))
    });
    service.layer(once.budgets(BudgetLayer::new(Limiter::new(store), quotas)))
}

/// A server of its own, which ends with the handle.
pub(crate) async fn listen(router: Router) -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = admit_listen::serve(listener, router, Limits::default(), CancellationToken::new());
    (address, AbortOnDropHandle::new(tokio::spawn(serving)))
}

fn of(ask: &Ask, mut request: Builder) -> Builder {
    for (name, value) in [("x-api-key", &ask.api_key), ("idempotency-key", &ask.idempotency_key)] {
        if let Some(value) = value {
            request = request.header(name, value);
        }
    }
    if let Some(media) = ask.content_type {
        request = request.header("content-type", media);
    }
    let cost = ask.cost.to_string();
    request.header("x-user", &ask.user).header("x-team", &ask.team).header("x-cost", cost)
}

async fn order(router: &Router, ask: &Ask) -> Told {
    send(router, of(ask, Request::post("/orders")), &ask.payload).await
}

async fn call(router: &Router, path: &str, body: &Value) -> Told {
    send(router, Request::post(path).header("content-type", "application/json"), &body.to_string()).await
}

async fn send(router: &Router, request: Builder, body: &str) -> Told {
    let request = request.header("host", "admit.test").body(Body::from(body.to_owned())).unwrap();
    let (head, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Told { status: head.status.as_u16(), headers: head.headers, body }
}
