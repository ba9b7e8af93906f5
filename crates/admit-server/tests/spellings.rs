//! Other spellings of a request that is held to a budget: none of them reaches the service past it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod served;

use http::{Method, Request, StatusCode};
use served::{Server, upstream};

/// The costly request may run once; everything else is cheap.
const POLICY: &str = r#"
[budgets.costly]
rate = "1/hour"
by = "const:all"
[budgets.cheap]
rate = "1000/second"
by = "const:all"
[budgets.of_user]
rate = "1/hour"
by = "path:user"

[[routes]]
match = "POST /v1/costly"
budgets = ["costly"]
[[routes]]
match = "GET /v1/report"
budgets = ["costly"]
[[routes]]
match = "* /users/{user}"
budgets = ["of_user"]
[[routes]]
match = "* /users/{user}/posts"
budgets = ["cheap"]
[[routes]]
match = "* /v1/{*rest}"
budgets = ["cheap"]
[[routes]]
match = "* /all/{*rest}"
budgets = ["costly"]
"#;

async fn status(gateway: &Server, method: &str, path: &str) -> StatusCode {
    charged(gateway, method, path).await.0
}

/// What came of a request, and the budgets that had it.
async fn charged(gateway: &Server, method: &str, path: &str) -> (StatusCode, Vec<String>) {
    let method: Method = method.parse().unwrap();
    let reply = gateway.send(Request::builder().method(method), path, "").await;
    let policies = reply.header("ratelimit-policy").unwrap_or_default();
    let names = policies.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    (reply.status, names)
}

/// `GET /v1/report` took every other method of that path out of the route for the rest: `POST /v1/report` was held to no budget
/// at all.
#[tokio::test]
async fn a_route_for_one_method_takes_no_other_out_of_a_less_specific_one() {
    let upstream = upstream().await;
    let policy = r#"
        [budgets.one]
        rate = "1000/second"
        by = "const:all"
        [budgets.some]
        rate = "1000/second"
        by = "const:all"
        [budgets.all]
        rate = "1000/second"
        by = "const:all"
        [[routes]]
        match = "GET /v1/jobs/{id}"
        budgets = ["one"]
        [[routes]]
        match = "PUT,DELETE /v1/{*rest}"
        budgets = ["some"]
        [[routes]]
        match = "* /{*path}"
        budgets = ["all"]
    "#;
    let gateway = Server::gateway(upstream.address, policy).await;
    for (method, path, expected) in [
        ("GET", "/v1/jobs/7", "one"),
        ("head", "/v1/jobs/7", "one"),
        ("DELETE", "/v1/jobs/7", "some"),
        ("put", "/v1/jobs/7", "some"),
        ("POST", "/v1/jobs/7", "all"),
        ("PURGE", "/v1/jobs/7", "all"),
        ("PATCH", "/v1/jobs/7", "all"),
        ("GET", "/v1/jobs", "all"),
        ("POST", "/v1%2Fjobs%2F7", "all"),
        ("GET", "/v1%2Fjobs%2F7", "one"),
    ] {
        assert_eq!(
            charged(&gateway, method, path).await,
            (StatusCode::OK, vec![expected.into()]),
            "{method} {path}"
        );
    }
}

/// A last slash, a parameter, an encoded slash, dots that the service does not follow, and `post` for `POST` had no route, or
/// that of another request.
#[tokio::test]
async fn no_other_spelling_passes_by_a_budget() {
    let upstream = upstream().await;
    let gateway = Server::gateway(upstream.address, POLICY).await;
    assert_eq!(status(&gateway, "POST", "/v1/costly").await, 200);
    for path in [
        "/v1/costly/",
        "/v1/costly//",
        "//v1/costly",
        "/v1;a=b/costly",
        "/v1/costly;a",
        "/v1/costl%79",
        "/v1%2Fcostly",
        "/v1%2fcostly/",
        "/v1%5Ccostly",
        "/v1/costly%3Fx",
        "/v1/costly?x=1",
    ] {
        let refused = status(&gateway, "POST", path).await;
        match path.contains("%3F") {
            true => assert_eq!(refused, 200, "{path}: another path to every service"),
            false => assert_eq!(refused, 429, "{path}"),
        }
    }
    for path in [
        "/v1/costly/../x",
        "/x/%2e%2e/v1/costly",
        "/v1/x/..%2fcostly",
        "/v1/costly/..;/x",
        "/v1/costly%00",
        "/./v1/costly",
    ] {
        assert_eq!(status(&gateway, "POST", path).await, 400, "{path}");
    }
    for (method, path) in [
        ("post", "/v1/costly"),
        ("Post", "/v1/costly"),
        ("GET", "/v1/report"),
        ("HEAD", "/v1/report"),
        ("get", "/v1/report"),
    ] {
        assert_eq!(status(&gateway, method, path).await, 429, "{method} {path}");
    }
    // A route for the rest of a path has the empty rest.
    for path in ["/all/x", "/all/", "/all"] {
        assert_eq!(status(&gateway, "GET", path).await, 429, "{path}");
    }
    let other = charged(&gateway, "PUT", "/v1/costly").await;
    assert_eq!(other, (StatusCode::OK, vec!["cheap".into()]), "another method has the route for the rest");
}

/// Each spelling of a name had a bucket of its own.
#[tokio::test]
async fn a_name_in_a_path_has_one_bucket() {
    let upstream = upstream().await;
    let gateway = Server::gateway(upstream.address, POLICY).await;
    assert_eq!(status(&gateway, "GET", "/users/ann@x.example").await, 200);
    for path in [
        "/users/ann%40x.example",
        "/users/%61nn%40x.example",
        "/users/ann@x.example;v=1",
        "/users/ann@x.example/",
    ] {
        assert_eq!(status(&gateway, "GET", path).await, 429, "{path}");
    }
    assert_eq!(status(&gateway, "GET", "/users/a%2Fb").await, 200, "a slash in a name is a part of it");
    assert_eq!(status(&gateway, "GET", "/users/a%2fb").await, 429);
    assert_eq!(status(&gateway, "GET", "/users/a%2Fposts").await, 400, "one user, or the posts of another");
}

/// A body that only the service could read had the cost of one without the member.
#[tokio::test]
async fn a_body_that_is_no_json_does_not_hide_its_cost() {
    let upstream = upstream().await;
    let policy = r#"
        [budgets.tokens]
        rate = "1000/hour"
        by = "const:all"
        cost = { from = "json:/max_tokens", otherwise = 1 }
        [[routes]]
        match = "POST /chat"
        budgets = ["tokens"]
    "#;
    let gateway = Server::gateway(upstream.address, policy).await;
    let post = async |body: &'static str| {
        gateway.send(Request::builder().method(Method::POST), "/chat", body).await.status.as_u16()
    };
    for hidden in [
        r#"{"max_tokens": 9, "max_tokens": 900000}"#,
        "{\"max_tokens\": 900000, \"x\": NaN}",
        "\u{feff}{\"max_tokens\": 900000}",
        r#"{"max_tokens": 900000} "#.trim_end_matches([' ', '}']),
        r#"{"max_tokens": "900000"}"#,
    ] {
        assert_eq!(post(hidden).await, 400, "{hidden}");
    }
    assert_eq!([post("").await, post("{}").await, post(r#"{"max_tokens": 900}"#).await], [200; 3]);
    assert_eq!(post(r#"{"max_tokens": 900}"#).await, 429);
}
