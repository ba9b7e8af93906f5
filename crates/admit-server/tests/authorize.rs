//! Forward-auth, asked as other proxies ask.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::sync::Arc;

use admit_listen::Peer;
use admit_server::Front;
use admit_server::metrics::Metrics;
use admit_server::policy::{Keys, Policy};
use admit_store::AnyStore;
use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use http::{Request, Response};
use http_body_util::BodyExt;
use tower::ServiceExt;

const POLICY: &str = r#"
    trusted_proxies = "10.0.0.1"
    [budgets.jobs]
    rate = "2/hour"
    by = "ip"
    [[routes]]
    match = "POST /v1/{project}/jobs"
    budgets = ["jobs"]
"#;

async fn service() -> Router {
    let policy = Policy::parse("test", POLICY).unwrap();
    let store = AnyStore::open("memory:", policy.rules().unwrap()).await.unwrap();
    let front = Front::new(Arc::new(policy), Arc::new(Keys::default()), store, Metrics::default());
    front.decide().layer(Extension(Peer(SocketAddr::from(([10, 0, 0, 1], 7)))))
}

async fn ask(service: &Router, request: http::request::Builder, client: &str) -> Response<Body> {
    let request = request.header("x-forwarded-for", client).body(Body::empty()).unwrap();
    service.clone().oneshot(request).await.unwrap()
}

#[tokio::test]
async fn each_proxy_may_tell_the_request_in_its_own_way() {
    let service = service().await;
    let asked: [fn() -> http::request::Builder; 3] = [
        // Traefik and Caddy.
        || {
            Request::get("/authorize")
                .header("x-forwarded-method", "POST")
                .header("x-forwarded-uri", "/v1/garden/jobs?x=1")
        },
        // nginx, as its configuration sets them.
        || {
            Request::get("/authorize")
                .header("x-original-method", "POST")
                .header("x-original-uri", "/v1/garden/jobs")
        },
        // Envoy, with a path_prefix.
        || Request::post("/authorize/v1/garden/jobs?x=1"),
    ];
    for (i, request) in asked.into_iter().enumerate() {
        let client = format!("203.0.113.{i}");
        for left in ["1", "0"] {
            let allowed = ask(&service, request(), &client).await;
            assert_eq!(allowed.status(), 200);
            assert!(
                allowed.headers()["ratelimit"].to_str().unwrap().starts_with(&format!("\"jobs\";r={left};"))
            );
        }
        let refused = ask(&service, request(), &client).await;
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["retry-after"]),
            (429, &"1800".parse().unwrap())
        );
        let problem = refused.into_body().collect().await.unwrap().to_bytes();
        assert!(
            String::from_utf8_lossy(&problem).contains("\"violated-policies\":[\"jobs\"]"),
            "{problem:?}"
        );
    }
}

#[tokio::test]
async fn a_proxy_that_knows_few_refusals_gets_one_of_those_and_the_true_status_beside_it() {
    let service = service().await;
    let request = || {
        Request::get("/authorize?refuse_with=403")
            .header("x-original-method", "POST")
            .header("x-original-uri", "/v1/a/jobs")
    };
    for _ in 0..2 {
        assert_eq!(ask(&service, request(), "203.0.113.9").await.status(), 200);
    }
    let refused = ask(&service, request(), "203.0.113.9").await;
    let headers = refused.headers();
    assert_eq!((refused.status().as_u16(), &headers["x-admit-status"]), (403, &"429".parse().unwrap()));
    assert_eq!(headers["retry-after"], "1800");
    let problem = headers["x-admit-problem"].clone();
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(problem.as_bytes(), body, "a proxy that passes no body on may send this header as one");
}

#[tokio::test]
async fn what_is_no_request_is_told_and_what_the_policy_does_not_name_is_allowed() {
    let service = service().await;
    for (method, uri) in [("POST ", "/"), ("", "/"), ("GET", "nowhere"), ("GET", ""), ("GET", "http://a/b")] {
        let request =
            Request::get("/authorize").header("x-forwarded-method", method).header("x-forwarded-uri", uri);
        assert_eq!(ask(&service, request, "203.0.113.9").await.status(), 400, "{method:?} {uri:?}");
    }
    let twice =
        Request::get("/authorize").header("x-forwarded-uri", "/a").header("x-forwarded-uri", "/v1/a/jobs");
    assert_eq!(ask(&service, twice, "203.0.113.9").await.status(), 400);
    // nginx lets its client's X-Forwarded-Uri through, which was believed before the X-Original-URI that nginx sets.
    let smuggled = Request::get("/authorize")
        .header("x-original-method", "POST")
        .header("x-original-uri", "/v1/a/jobs")
        .header("x-forwarded-uri", "/free");
    assert_eq!(ask(&service, smuggled, "203.0.113.9").await.status(), 400);
    let other = Request::get("/authorize")
        .header("x-forwarded-method", "GET")
        .header("x-forwarded-uri", "/v1/a/jobs");
    assert_eq!(ask(&service, other, "203.0.113.9").await.status(), 200);
    assert_eq!(ask(&service, Request::get("/elsewhere"), "203.0.113.9").await.status(), 404);
}

/// A client behind a proxy that sets the one pair of headers could send the other, which won, and name a cheaper request.
#[tokio::test]
async fn a_request_that_is_told_in_two_ways_is_not_decided_on() {
    let service = service().await;
    let by_nginx = || Request::get("/authorize").header("x-original-uri", "/v1/a/jobs");
    let spoofed = [
        by_nginx().header("x-forwarded-uri", "/free"),
        by_nginx().header("x-forwarded-method", "GET"),
        Request::post("/authorize/v1/a/jobs").header("x-forwarded-uri", "/free"),
    ];
    for request in spoofed {
        assert_eq!(ask(&service, request, "203.0.113.9").await.status(), 400);
    }
}

/// A misspelt status was passed over, and refusals came as 429, which nginx turns into 500.
#[tokio::test]
async fn a_status_that_refusals_cannot_have_is_told() {
    let service = service().await;
    for query in ["402", "", "403&refuse_with=401"] {
        let request = Request::get(format!("/authorize?refuse_with={query}")).header("x-original-uri", "/a");
        assert_eq!(ask(&service, request, "203.0.113.9").await.status(), 400, "{query}");
    }
    let of_the_request = Request::get("/authorize/a?refuse_with=402");
    assert_eq!(ask(&service, of_the_request, "203.0.113.9").await.status(), 200);
}

/// A client that sent `Content-Type: application/grpc`, which proxies pass on with their question, was refused with 200 and a
/// gRPC status: each of its requests ran, whatever its budget said, and also while the store was away.
#[tokio::test]
async fn no_content_type_makes_leave_to_run_of_a_refusal() {
    let service = service().await;
    for (i, media) in ["application/grpc", "application/grpc+proto", "application/json"].iter().enumerate() {
        let client = format!("203.0.113.{i}");
        for (query, expected) in [("", 200), ("", 200), ("", 429), ("?refuse_with=403", 403)] {
            let request = Request::get(format!("/authorize{query}"))
                .header("content-type", *media)
                .header("x-original-method", "POST")
                .header("x-original-uri", "/v1/a/jobs");
            let answer = ask(&service, request, &client).await;
            assert_eq!(answer.status(), expected, "{media} {query}");
            let is_problem =
                answer.headers().get("content-type").is_some_and(|of| of == "application/problem+json");
            assert_eq!(is_problem, expected != 200, "{media} {query}");
        }
    }
}

/// Envoy asks about the path `/` at `/authorize/`.
#[tokio::test]
async fn the_root_is_asked_about_with_and_without_its_slash() {
    let service = service().await;
    for path in ["/authorize", "/authorize/", "/authorize/?x=1"] {
        assert_eq!(ask(&service, Request::get(path), "203.0.113.9").await.status(), 200, "{path}");
    }
}
