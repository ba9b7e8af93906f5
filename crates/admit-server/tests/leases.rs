//! Budgets that are leased.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod program_place;
mod reload_place;

use program_place::run;
use reload_place::{Place, budget};
use serde_json::{Value, json};

fn leased(rate: &str) -> String {
    budget(rate).replace("[[routes]]", "lease = \"10%\"\n[[routes]]")
}

fn metric(place: &Place, name: &str) -> f64 {
    place.running.metrics().leases.holds(&place.running.in_force().leased); // As a scrape does.
    let metrics = place.running.metrics().encode().unwrap();
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{name} in {metrics}"))
}

#[tokio::test]
async fn programs_that_lease_a_budget_grant_no_more_than_it_and_tell_what_they_hold() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a.db").display());
    let places =
        [Place::start(&store, &leased("200/hour")).await, Place::start(&store, &leased("200/hour")).await];
    let mut granted = 0;
    for _ in 0..25 {
        for place in &places {
            granted += place.granted(5).await;
        }
    }
    assert!((200 - 20..=205).contains(&granted), "{granted}, and one in 18 s");
    for place in &places {
        let slices = metric(place, "admit_lease_slices_total{outcome=\"taken\"}");
        assert!(slices > 1.0 && slices < 60.0, "{slices}");
        assert!(metric(place, "admit_lease_tokens") <= 20.0);
        assert!(metric(place, "admit_lease_taken_tokens_total") >= 2.0 * slices);
    }
}

#[tokio::test]
async fn a_reload_keeps_what_is_held_and_drops_what_is_leased_no_more() {
    let place = Place::start("memory:", &leased("200/hour")).await;
    assert_eq!(place.granted(8).await, 8);
    let held = metric(&place, "admit_lease_tokens");
    assert!(held > 0.0);
    place.write("admit.toml", &place.policy(&format!("headers = \"none\"\n{}", leased("200/hour"))));
    place.running.reload().await.unwrap();
    assert_eq!(metric(&place, "admit_lease_tokens"), held);
    place.write("admit.toml", &place.policy(&budget("200/hour")));
    place.running.reload().await.unwrap();
    assert_eq!(metric(&place, "admit_lease_tokens"), 0.0);
    let granted = place.granted(250).await;
    assert!(
        (192 - held as usize..=195 - held as usize).contains(&granted),
        "{granted}, with {held} held before"
    );
}

#[tokio::test]
async fn check_tells_what_a_process_may_hold() {
    let directory = tempfile::tempdir().unwrap();
    let policy = format!("store = \"memory:\"\n{}", leased("200/hour"));
    std::fs::write(directory.path().join("admit.toml"), policy).unwrap();
    let (code, said, _) = run(&directory, &["check", "admit.toml"]).await;
    assert!(
        code == 0 && said.contains("x is leased: each process may hold 10% of a bucket, 20 tokens"),
        "{said}"
    );
    let (_, said, _) = run(&directory, &["check", "admit.toml", "--json"]).await;
    let told: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(told["leases"], json!([{"budget": "x", "share": "10%", "tokens": 20.0}]));
}
