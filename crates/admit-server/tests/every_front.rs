//! One table of cases, and every front: the same status, headers and body wherever a front can carry the case, and the
//! matching codes through Envoy's protocol.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "every_front/envoy_front.rs"]
mod envoy_front;
#[path = "every_front/fronts.rs"]
mod fronts;
#[path = "every_front/policy.rs"]
mod policy;
#[path = "every_front/service.rs"]
mod service;

use admit_testbed::{Postgres, Shutdown};
use fronts::{Ask, Fronts, Told};
use serde_json::Value;

/// A case is a few requests, of which the last is told.
struct Case {
    name: &'static str,
    asks: Vec<Ask>,
    status: u16,
    /// The `error` member of the problem.
    error: Option<&'static str>,
    retry_after: Option<&'static str>,
    violated: &'static [&'static str],
    /// The code of Envoy's protocol: OK, OVER_LIMIT, or that of a failed call.
    rate_limit: Option<&'static str>,
}

fn case(name: &'static str, asks: Vec<Ask>, status: u16, error: Option<&'static str>) -> Case {
    Case { name, asks, status, error, retry_after: None, violated: &[], rate_limit: None }
}

/// Those that budgets decide. Each has callers of its own.
fn budget_cases() -> Vec<Case> {
    // Each in a team of its own, unless the case is about teams.
    let teams = std::cell::Cell::new(0);
    let ask = |user: &str, cost: f64| {
        teams.set(teams.get() + 1);
        Ask { user: user.into(), team: format!("team-{}", teams.get()), cost, ..Ask::default() }
    };
    vec![
        Case { rate_limit: Some("OK"), ..case("allowed", vec![ask("allowed", 1.0)], 200, None) },
        Case {
            retry_after: Some("1800"),
            violated: &["hourly"],
            rate_limit: Some("OVER_LIMIT"),
            ..case(
                "refused by the first",
                vec![ask("first", 1.0), ask("first", 1.0), ask("first", 1.0)],
                429,
                Some("rate_limit_exceeded"),
            )
        },
        Case {
            retry_after: Some("1800"),
            violated: &["hourly"],
            rate_limit: Some("OVER_LIMIT"),
            ..case(
                "refused whatever the client says that it speaks",
                vec![ask("grpc", 2.0), Ask { content_type: Some("application/grpc"), ..ask("grpc", 1.0) }],
                429,
                Some("rate_limit_exceeded"),
            )
        },
        Case {
            retry_after: Some("3600"),
            violated: &["shared"],
            rate_limit: Some("OVER_LIMIT"),
            ..case(
                "refused by the second",
                vec![
                    Ask { team: "second".into(), ..ask("second-a", 1.0) },
                    Ask { team: "second".into(), ..ask("second-b", 1.0) },
                ],
                429,
                Some("rate_limit_exceeded"),
            )
        },
        Case {
            violated: &["hourly"],
            rate_limit: Some("OVER_LIMIT"),
            ..case("never fits", vec![ask("never", 3.0)], 429, Some("rate_limit_exceeded"))
        },
    ]
}

/// What a front tells, so that it can be compared with what another does.
fn comparable(told: &Told) -> (u16, Vec<(String, String)>, String) {
    let fields = ["retry-after", "ratelimit", "ratelimit-policy", "content-type", "www-authenticate"];
    let is_own = |name: &str| told.status == 200 && name == "content-type"; // The service's.
    let fields = fields.iter().filter(|name| !is_own(name)).filter_map(|name| {
        let value = told.headers.get(*name)?;
        Some(((*name).to_owned(), value.to_str().unwrap().to_owned()))
    });
    (told.status, fields.collect(), told.body.clone())
}

/// A problem without what names headers in one front and entries in another.
fn in_general(problem: &str) -> Option<Value> {
    let mut problem: Value = serde_json::from_str(problem).ok()?;
    let members = problem.as_object_mut()?;
    members.remove("detail");
    members.remove("reason");
    Some(problem)
}

fn assert_is(case: &Case, front: &str, told: &Told) {
    let what = format!("{} through {front}: {told:?}", case.name);
    assert_eq!(told.status, case.status, "{what}");
    let header = |name: &str| told.headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!(header("retry-after"), case.retry_after, "{what}");
    if let Some(error) = case.error {
        let problem: Value = serde_json::from_str(&told.body).expect(&what);
        assert_eq!(problem["error"], error, "{what}");
        assert_eq!(header("content-type"), Some("application/problem+json"), "{what}");
        if !case.violated.is_empty() {
            assert_eq!(problem["violated-policies"], serde_json::json!(case.violated), "{what}");
        }
    }
}

#[tokio::test]
async fn budgets_decide_alike_in_every_front() {
    for case in budget_cases() {
        let mut all = Vec::new();
        for (front, told) in Fronts::start("memory:").await.ask_http(&case.asks).await {
            assert_is(&case, front, &told);
            all.push((front, comparable(&told)));
        }
        let (_, first) = &all[0];
        for (front, told) in &all {
            let (status, fields, body) = told;
            assert_eq!((status, fields), (&first.0, &first.1), "{}: {front} against middleware", case.name);
            // What an allowed request is answered with is the service's own, or that the caller may go on.
            if case.status != 200 {
                assert_eq!(body, &first.2, "{}: {front} against middleware", case.name);
            }
        }
        let (grpc, json) = Fronts::start("memory:").await.ask_envoy(&case.asks).await;
        assert_eq!(
            in_general(&grpc.body),
            in_general(&first.2).filter(|_| case.status == 429),
            "{}",
            case.name
        );
        for (front, told) in [("gRPC", grpc), ("/json", json)] {
            assert_eq!(Some(told.code.as_str()), case.rate_limit, "{} through {front}", case.name);
            let fields: Vec<_> = first.1.iter().filter(|(name, _)| name != "content-type").cloned().collect();
            assert_eq!(told.fields, fields, "{} through {front}", case.name);
        }
    }
}

/// The store is a PostgreSQL that was there and is stopped.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_unavailable_in_every_front_and_no_refusal() {
    let postgres = Postgres::fast().unwrap();
    let fronts = Fronts::start(&postgres.url()).await;
    postgres.stop(Shutdown::Immediate).unwrap();
    let asks = [Ask { user: "ann".into(), team: "red".into(), cost: 1.0, ..Ask::default() }];
    let expected = case("unavailable", Vec::new(), 503, Some("unavailable"));
    let mut bodies = Vec::new();
    let claimed = [Ask { content_type: Some("application/grpc"), ..asks[0].clone() }];
    for (front, told) in fronts.ask_http(&claimed).await {
        assert_is(&expected, front, &told);
    }
    for (front, told) in fronts.ask_http(&asks).await {
        assert_is(&expected, front, &told);
        assert!(!told.headers.contains_key("ratelimit"), "{front}: {told:?}");
        let mut problem: Value = serde_json::from_str(&told.body).unwrap();
        let id = problem.as_object_mut().unwrap().remove("correlation_id").expect(front);
        assert_eq!(told.headers["x-correlation-id"], id.as_str().unwrap(), "{front}");
        bodies.push(problem);
    }
    assert!(bodies.windows(2).all(|two| two[0] == two[1]), "{bodies:?}");
    let (grpc, json) = fronts.ask_envoy(&asks).await;
    assert_eq!((grpc.code.as_str(), json.code.as_str()), ("UNAVAILABLE", "503"));
    assert!(!fronts.is_serving().await, "gRPC health");
    for (front, told) in fronts
        .keyed(&[Ask { idempotency_key: Some("k".into()), payload: "a".into(), ..asks[0].clone() }])
        .await
    {
        assert_is(&expected, front, &told);
    }
    // A budget that says so lets requests run.
    for (front, is_admitted) in fronts.ask_lenient().await {
        assert!(is_admitted, "{front}");
    }
}

#[tokio::test]
async fn keys_run_once_in_every_front_that_can_keep_them() {
    let key = |key: &str, payload: &str| Ask {
        user: key.into(),
        cost: 0.0,
        idempotency_key: Some(key.into()),
        payload: payload.into(),
        ..Ask::default()
    };
    let cases = [
        case("replay", vec![key("replay", "a"), key("replay", "a")], 201, None),
        case(
            "mismatch",
            vec![key("mismatch", "a"), key("mismatch", "b")],
            422,
            Some("idempotency_key_reused"),
        ),
        Case {
            retry_after: Some("1"),
            ..case("in flight", vec![key("hang", "a"), key("hang", "a")], 409, Some("idempotency_in_flight"))
        },
    ];
    for case in cases {
        let fronts = Fronts::start("memory:").await;
        let all = fronts.keyed(&case.asks).await;
        let (_, first) = &all[0];
        for (front, told) in &all {
            assert_is(&case, front, told);
            assert_eq!(comparable(told), comparable(first), "{}: {front} against middleware", case.name);
        }
        // A forward-auth front never sees the response, so it has no record and lets the request pass on.
        let forwarded = fronts.forward_auth(case.asks.last().unwrap()).await;
        assert_eq!(forwarded.status, 200, "{}", case.name);
    }
}

#[tokio::test]
async fn an_unknown_key_is_refused_before_any_bucket_is_touched() {
    let unknown = Ask { api_key: Some("unknown".into()), user: "ann".into(), cost: 1.0, ..Ask::default() };
    let expected = case("unknown key", Vec::new(), 401, Some("unauthorized"));
    let fronts = Fronts::start("memory:").await;
    let all = fronts.ask_known(&unknown).await;
    for (front, told) in &all {
        assert_is(&expected, front, told);
        assert_eq!(comparable(told), comparable(&all[0].1), "{front}");
        assert!(!told.headers.contains_key("ratelimit"), "{front}: {told:?}");
    }
    // Where the caller is one who may not ask for decisions: the same status, and its own words.
    let (take, rate_limit) = fronts.ask_without_token().await;
    assert_is(&expected, "decision API", &take);
    assert_eq!(rate_limit, "UNAUTHENTICATED");
}
