//! The SQL of the guide's page on reading a budget does what the page says.

use crate::ingest_bodies::log_line;
use crate::place::{DOMAIN, KEY_1, KEY_2, NODE_1, NODE_2, PROJECT, Place, RESOURCE, TOKEN};

const PAGE: &str = include_str!("../../../../docs/guide/reading-a-budget.md");

fn sql_blocks() -> Vec<String> {
    let blocks = PAGE.split("```sql\n").skip(1).map(|block| block.split("```").next().unwrap());
    blocks.map(|block| block.replace("<domain-uuid>", DOMAIN)).collect()
}

#[tokio::test]
async fn every_select_of_the_page_runs_and_shows_what_it_says() {
    let place = Place::postgres();
    let replicas = [place.start().await, place.start().await];
    let blocks = sql_blocks();
    let [of_domain, shared] = &blocks[..] else { panic!("the page has {} blocks of SQL", blocks.len()) };
    let psql = |sql: &str| place.postgres.as_ref().unwrap().psql(sql).unwrap();
    assert_eq!(psql(of_domain), "", "a bucket that nobody took from is no row");
    assert_eq!(psql(shared), "0");

    for (fleet, (node, key)) in replicas.iter().zip([(NODE_1, KEY_1), (NODE_2, KEY_2)]) {
        fleet.read(node, key).send().await.is_ok(200);
        fleet.ingest(node, key, "logs").body(log_line("x")).send().await.is_ok(202);
        fleet.open_at(PROJECT, RESOURCE, TOKEN, serde_json::json!({})).send().await.is_ok(201);
    }
    assert_eq!(psql(shared), "1", "two nodes of one domain, two replicas, one row");

    let left = 16 * 1024 * 1024 - 2 * log_line("x").len();
    let rows = psql(of_domain);
    let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split('|').collect()).collect();
    let tokens: Vec<(&str, &str)> = rows.iter().map(|row| (row[0], row[1])).collect();
    let left = left.to_string();
    let expected = [("access_issuance_domain", "8"), ("ingest_domain", &*left), ("secret_read_domain", "98")];
    assert_eq!(tokens, expected);
    assert!(rows.iter().all(|row| row[2].starts_with("2026-01-01 00:00:00")), "{rows:?}");

    let scopes = "SELECT count(DISTINCT scope) FROM plexsphere.rate_budgets";
    assert_eq!(psql(scopes), "5");
    let other = "INSERT INTO plexsphere.rate_budgets VALUES ('sixth', gen_random_uuid(), 1, now())";
    let refused = place.postgres.as_ref().unwrap().psql(other);
    assert!(refused.is_err(), "the table takes a sixth scope");
}

#[test]
fn the_fleet_page_lists_every_variable() {
    let page = include_str!("../../../../docs/guide/fleet-api.md");
    for variable in fleet_api::settings::VARIABLES {
        assert!(page.contains(&format!("`{}`", variable.name)), "{} is missing", variable.name);
    }
}
