//! The guide's pages for proxies, run as they stand, with the real proxies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod page;
mod stand;

use admit_testbed::Proxy;
use serde_json::Value;
use stand::Stand;

/// What a page says of its proxy.
struct Says {
    /// Whether the client of an allowed request is told its limits.
    fields_on_allowed: bool,
    /// Whether a client reads why nothing could be decided.
    tells_why_undecided: bool,
    /// The status where the decision service is down.
    down: u16,
}

async fn holds(page: &str, proxy: Proxy, main_file: &str, says: Says) {
    let policy = if main_file == "envoy-rls.yaml" { "admit-rls.toml" } else { "admit.toml" };
    let mut stand = Stand::new(page, policy, proxy, main_file).await;
    for left in [2, 1, 0] {
        let allowed = stand.post("/v1/things?x=1", &[], "a body").await;
        assert_eq!((allowed.status, &*allowed.body), (200, "POST /v1/things?x=1 a body"), "{allowed:?}");
        let field = allowed.headers.get("ratelimit").map(|value| value.to_str().unwrap().to_owned());
        match says.fields_on_allowed {
            true => assert!(field.unwrap().starts_with(&format!("\"requests\";r={left};t="))),
            false => assert_eq!(field, None),
        }
    }

    let refused = stand.post("/v1/things", &[], "a body").await;
    assert_eq!(
        (refused.status, &refused.headers["content-type"]),
        (429, &"application/problem+json".parse().unwrap())
    );
    let wait: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((5..=10).contains(&wait), "one token in 10 s, and some have passed: {wait}");
    assert!(refused.headers["ratelimit"].to_str().unwrap().starts_with("\"requests\";r=0;t="));
    let problem: Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!(
        (&problem["status"], &problem["retry_after_seconds"]),
        (&Value::from(429), &Value::from(wait))
    );
    assert_eq!(problem["violated-policies"], serde_json::json!(["requests"]));

    // No header of the client's makes it another client, or its request another one.
    let headers = [
        [("x-forwarded-for", "203.0.113.9"), ("x-real-ip", "203.0.113.9")],
        [("x-forwarded-uri", "/free"), ("x-forwarded-method", "GET")],
        [("x-original-uri", "/free"), ("x-original-method", "GET")],
        [("forwarded", "for=203.0.113.9"), ("x-envoy-original-path", "/free")],
    ];
    for headers in headers {
        let answer = stand.post("/v1/things", &headers, "a body").await;
        assert!([400, 429].contains(&answer.status), "{headers:?}: {answer:?}");
    }
    for path in ["//v1/things", "/%761/things", "/v1/thing%73", "/v1;x/things/"] {
        let answer = stand.post(path, &[], "a body").await;
        assert_eq!(answer.status, 429, "{path}: {answer:?}");
    }
    for path in ["/v1/./things", "/x/../v1/things", "/v1/things/%2e%2e/%2E%2E/free"] {
        let answer = stand.post(path, &[], "a body").await;
        // Some proxies follow dots before they ask, and forward what they asked about.
        let is_free = answer.status == 200 && answer.body == "POST /free a body" && path.ends_with("/free");
        assert!([400, 429].contains(&answer.status) || is_free, "{path}: {answer:?}");
    }
    assert_eq!(stand.post("/free", &[], "").await.status, 200);

    stand.stop_the_store();
    // The bucket of the client so far is known to be empty, which needs no store.
    assert_eq!(stand.post("/v1/things", &[], "a body").await.status, 429);
    if cfg!(target_os = "macos") {
        return; // Its loopback has one address, so there is no other client.
    }
    stand.comes_from_elsewhere();
    let undecided = stand.post("/v1/things", &[], "a body").await;
    assert_eq!(undecided.status, 503, "{undecided:?}");
    assert!(!undecided.headers.contains_key("retry-after"), "{undecided:?}");
    let problem: Value = serde_json::from_str(&undecided.body).unwrap_or_default();
    assert_eq!(problem["status"] == 503, says.tells_why_undecided, "{undecided:?}");

    stand.stop_the_decision_service();
    let down = stand.post("/v1/things", &[], "a body").await;
    assert_eq!(down.status, says.down, "{down:?}");
    assert!(!down.headers.contains_key("retry-after"), "{down:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_asks_by_auth_request() {
    holds(
        "nginx.md",
        Proxy::Nginx,
        "admit.conf",
        Says { fields_on_allowed: true, tells_why_undecided: true, down: 503 },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_asks_by_njs() {
    holds(
        "nginx.md",
        Proxy::Nginx,
        "admit-njs.conf",
        Says { fields_on_allowed: true, tells_why_undecided: true, down: 503 },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_asks_by_forward_auth() {
    holds(
        "caddy.md",
        Proxy::Caddy,
        "Caddyfile",
        Says { fields_on_allowed: false, tells_why_undecided: true, down: 502 },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_asks_as_it_is_written_out() {
    holds(
        "caddy.md",
        Proxy::Caddy,
        "Caddyfile.long",
        Says { fields_on_allowed: true, tells_why_undecided: true, down: 503 },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_asks_by_lua() {
    holds(
        "haproxy.md",
        Proxy::HaProxy,
        "haproxy.cfg",
        Says { fields_on_allowed: true, tells_why_undecided: true, down: 503 },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traefik_asks_by_forward_auth() {
    holds(
        "traefik.md",
        Proxy::Traefik,
        "traefik.yaml",
        Says { fields_on_allowed: false, tells_why_undecided: true, down: 500 },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_asks_by_ext_authz() {
    holds(
        "envoy.md",
        Proxy::Envoy,
        "envoy.yaml",
        Says { fields_on_allowed: true, tells_why_undecided: false, down: 503 },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_asks_the_rate_limit_service() {
    let says = Says { fields_on_allowed: true, tells_why_undecided: false, down: 503 };
    holds("envoy.md", Proxy::Envoy, "envoy-rls.yaml", says).await;
}
