//! Policy files: what is wrong with broken ones, as a person reads it, and what whole ones mean.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use admit_server::policy::{CostSource, KeyPart, LimitsError, Mode, Policy, STARTER, WhenUnavailable};
use http::Method;
use miette::{GraphicalReportHandler, GraphicalTheme};

/// As a terminal without colours shows it.
fn shown(error: &dyn miette::Diagnostic) -> String {
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor()).with_width(110);
    let mut text = String::new();
    handler.render_report(&mut text, error).unwrap();
    text
}

/// One file for each mistake; the snapshot beside it is what a newcomer gets to read.
#[test]
fn what_is_wrong_is_told_with_its_place_and_what_was_meant() {
    insta::glob!("broken/*.toml", |path| {
        let text = std::fs::read_to_string(path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let errors = Policy::parse(name, &text).expect_err(name);
        insta::assert_snapshot!(shown(&errors));
    });
}

/// Every request of such a route was refused as one that never fits, and nothing had told so before.
#[test]
fn a_budget_that_no_request_fits_is_warned_of() {
    let text = r#"
        upstream = "http://localhost:3000"
        budgets.slow = { rate = "0.5/second", by = "ip" }
        budgets.dear = { rate = "1/hour", by = "ip", cost = 2 }
        budgets.planned = { rate = "1/hour", by = "ip", cost = 2, plans = { pro = "10/hour" } }
        budgets.unused = { rate = "0.5/second", by = "ip" }
        [[routes]]
        match = "GET /x"
        budgets = ["slow", "dear", "planned"]
    "#;
    let warnings = Policy::parse("admit.toml", text).unwrap().warnings();
    assert!(
        matches!(warnings.as_slice(), [dear, slow] if dear.contains("\"dear\" is never granted")
            && slow.contains("a request costs 1.0, and its bucket holds 0.5")),
        "{warnings:?}"
    );
}

/// Each request was 500.
#[test]
fn more_limits_than_a_request_takes_from_are_no_policy() {
    let limits = vec!["1/hour".parse().unwrap(); 65];
    assert!(Policy::of_limits(&limits[..64], KeyPart::Ip).is_ok());
    assert_eq!(Policy::of_limits(&limits, KeyPart::Ip).unwrap_err(), LimitsError::TooMany(65));
}

#[test]
fn lengths_of_time_are_those_of_rates_too() {
    let text = "retention = \"30 days\"\n[budgets.x]\nrate = \"30/30days\"\nby = \"ip\"";
    let policy = Policy::parse("admit.toml", text).unwrap();
    assert_eq!(policy.server.retention.duration().as_secs(), 30 * 86_400);
}

#[test]
fn the_starter_policy_is_one() {
    let policy = Policy::parse("starter.toml", STARTER).unwrap();
    let names: Vec<_> = policy.budgets.iter().map(|budget| budget.scope.to_string()).collect();
    assert_eq!(names, ["burst", "hourly"]);
    let (route, names) = policy.routes.find(&Method::PUT, "/a/b").unwrap();
    assert_eq!((route.budgets.as_slice(), names), (&[1, 0][..], vec![("path".to_owned(), "a/b")]));
}

#[test]
fn a_whole_policy_means_what_it_says() {
    let text = r#"
        keys = "keys.toml"
        listen = "0.0.0.0:80"
        store = "postgres://admit@db/app"
        upstream = "http://localhost:3000"
        trusted_proxies = "10.0.0.0/8"
        headers = "legacy"
        retention = "25h"

        [budgets.daily]
        rate = "1000/day burst 50"
        by = ["tenant", "path:project"]
        plans = { free = "10/day", pro = "100000/day" }
        tenants.acme = "5/day"
        cost = { from = "json:/max_tokens", otherwise = 1_000 }
        mode = "shadow"
        when_unavailable = "admit"

        [budgets.bytes]
        rate = "256KiB/second burst 1MiB"
        by = "ip"
        cost = "body_bytes"
        spent_by_replays = true
        lease = "2.5%"

        [[routes]]
        match = "POST /v1/{project}/jobs"
        budgets = ["bytes", "daily"]
        idempotency = { by = "tenant", key = "json:/id", if_missing = "content", ttl = "1h 30m", on_lapse = "stay_blocked" }

        [[routes]]
        match = "GET,HEAD /v1/{project}/jobs"

        [[descriptors]]
        entries = { generic_key = "slow", remote_address = "*" }
        budgets = []
    "#;
    let policy = Policy::parse("admit.toml", text).unwrap();
    let [bytes, daily] = policy.budgets.as_slice() else { panic!("{:?}", policy.budgets) };
    assert_eq!((bytes.cost.clone(), bytes.spent_by_replays), (CostSource::BodyBytes, true));
    assert_eq!((bytes.lease, daily.lease), ("2.5%".parse().ok(), None));
    assert_eq!(daily.sizes().map(|size| size.burst().tokens()).fold(0.0, f64::max), 100_000.0);
    assert_eq!((daily.mode, daily.when_unavailable), (Mode::Shadow, WhenUnavailable::Admit));
    let size = |tenant, plan| daily.budget_of(tenant, plan).burst().tokens();
    assert_eq!(
        [size(None, None), size(None, Some("free")), size(Some("acme"), Some("pro"))],
        [50.0, 10.0, 5.0]
    );
    assert_eq!(size(Some("beta"), Some("none")), 50.0);

    let (route, names) = policy.routes.find(&Method::POST, "/v1/garden/jobs").unwrap();
    assert_eq!((route.budgets.as_slice(), names), (&[0, 1][..], vec![("project".to_owned(), "garden")]));
    assert_eq!(route.idempotency.as_ref().unwrap().terms.ttl.as_secs(), 5_400);
    assert!(policy.routes.find(&Method::HEAD, "/v1/garden/jobs").unwrap().0.budgets.is_empty());
    assert!(policy.routes.find(&Method::PUT, "/v1/garden/jobs").is_none());
    assert!(policy.routes.find(&Method::POST, "/v1/garden").is_none());

    let descriptor = &policy.descriptors[0];
    let matches =
        |entries: &[(&'static str, &'static str)]| descriptor.matches("any", entries.iter().copied());
    assert!(matches(&[("remote_address", "10.0.0.1"), ("generic_key", "slow")]));
    assert!(!matches(&[("generic_key", "slow")]));
    assert!(!matches(&[("remote_address", "10.0.0.1"), ("generic_key", "fast")]));
    assert!(!matches(&[("remote_address", "1"), ("generic_key", "slow"), ("path", "/")]));
    assert_eq!(policy.rules().unwrap().scopes.to_string(), "bytes, daily");
}
