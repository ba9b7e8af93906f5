//! API keys that are added and revoked while the program runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod program_place;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use admit_testbed::{Postgres, Shutdown};
use program_place::{Serving, json, run};
use rustix::process::Signal;
use tempfile::TempDir;

const ROUTE: &str = "[budgets.x]\nrate = \"1000/hour\"\nby = \"tenant\"\nwhen_unavailable = \"admit\"\n\
                     [[routes]]\nmatch = \"* /\"\nbudgets = [\"x\"]\n";

fn place(members: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("admit.toml"), format!("{members}\n{ROUTE}")).unwrap();
    directory
}

async fn add(directory: &TempDir, tenant: &str) -> (String, String) {
    let added =
        json(directory, &["keys", "add", "--tenant", tenant, "--plan", "pro", "--policy", "admit.toml"])
            .await;
    let text = |name: &str| added[name].as_str().unwrap().to_owned();
    (text("key"), text("hash"))
}

/// At once, for who says that it is time.
async fn told_until(serving: &Serving, key: &str, status: u16) {
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    let waiting = async {
        while serving.get_with_key("/authorize", key).await != status {
            serving.signal(Signal::HUP);
            tick.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("never {status}"));
}

async fn until(serving: &Serving, key: &str, status: u16) {
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    let waiting = async {
        while serving.get_with_key("/authorize", key).await != status {
            tick.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("never {status}"));
}

#[tokio::test]
async fn keys_in_a_file_are_taken_at_once_and_its_comments_stay() {
    let directory = place("keys = \"keys.toml\"");
    let file = directory.path().join("keys.toml");
    let (first, hash) = add(&directory, "acme").await;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains(&first[4..]) && first.starts_with("adm_") && first.len() == 68, "{text}");
    std::fs::write(&file, format!("# Ours.\n{text} # The first.\n")).unwrap();
    let serving = Serving::start(&directory, &["admit.toml"]).await;
    assert_eq!(serving.get_with_key("/authorize", &first).await, 200);
    assert_eq!(serving.get_with_key("/authorize", "adm_other").await, 401);

    let (second, _) = add(&directory, "beta").await;
    until(&serving, &second, 200).await;
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("# Ours.") && text.contains("# The first."), "{text}");
    let listed = json(&directory, &["keys", "list", "--policy", "admit.toml"]).await;
    let tenants: Vec<_> =
        listed.as_array().unwrap().iter().map(|key| key["tenant"].as_str().unwrap()).collect();
    assert!(tenants.contains(&"acme") && tenants.contains(&"beta") && !listed.to_string().contains(&first));

    let (code, _, said) = run(&directory, &["keys", "revoke", &hash, "--policy", "admit.toml"]).await;
    assert!(code == 1 && said.contains("add --yes"), "{said}");
    let (code, _, said) =
        run(&directory, &["keys", "revoke", &hash[..4], "--yes", "--policy", "admit.toml"]).await;
    assert!(code == 1 && said.contains("too little of a hash"), "{said}");
    // The key in the place of its hash stood in the error.
    let (code, _, said) =
        run(&directory, &["keys", "revoke", &second, "--yes", "--policy", "admit.toml"]).await;
    assert!(code == 1 && said.contains("this is no hash") && !said.contains(&second), "{said}");
    json(&directory, &["keys", "revoke", &hash, "--yes", "--policy", "admit.toml"]).await;
    until(&serving, &first, 401).await;
    assert_eq!(serving.get_with_key("/authorize", &second).await, 200);
    serving.stop().await;
}

#[tokio::test]
async fn keys_in_sqlite_are_taken_within_the_interval() {
    let directory = place("store = \"sqlite:admit.db\"\nkeys = \"store\"");
    let (code, _, said) = run(&directory, &["keys", "list", "--policy", "admit.toml"]).await;
    assert!(code == 1 && said.contains("there is no admit.db"), "{said}");
    json(&directory, &["migrate", "admit.toml"]).await;
    let (first, hash) = add(&directory, "acme").await;
    let serving = Serving::start(&directory, &["admit.toml"]).await;
    assert_eq!(serving.get_with_key("/authorize", &first).await, 200);
    json(&directory, &["keys", "revoke", &hash, "--yes", "--policy", "admit.toml"]).await;
    until(&serving, &first, 401).await;
    serving.stop().await;
}

#[tokio::test]
async fn known_keys_stay_known_in_an_outage_of_the_store() {
    let postgres = Postgres::fast().unwrap();
    let directory = place(&format!("store = \"{}\"\nkeys = \"store\"", postgres.url()));
    json(&directory, &["migrate", "admit.toml"]).await;
    let (first, _) = add(&directory, "acme").await;
    let serving = Serving::start(&directory, &["admit.toml"]).await;
    let (second, hash) = add(&directory, "beta").await;
    told_until(&serving, &second, 200).await;
    postgres.stop(Shutdown::Fast).unwrap();
    // A reload reads them anew as well, and finds the store away.
    let text = std::fs::read_to_string(directory.path().join("admit.toml")).unwrap();
    std::fs::write(directory.path().join("admit.toml"), text.replace("1000/hour", "999/hour")).unwrap();
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    while !serving.ask_admin("/metrics").await.1.contains("admit_reloads_total{outcome=\"taken\"} 1") {
        tick.tick().await;
    }
    for key in [&first, &second] {
        assert_eq!(serving.get_with_key("/authorize", key).await, 200, "the budget admits meanwhile");
    }
    assert_eq!(serving.get_with_key("/authorize", "adm_other").await, 401);
    postgres.start_again().unwrap();
    json(&directory, &["keys", "revoke", &hash, "--yes", "--policy", "admit.toml"]).await;
    told_until(&serving, &second, 401).await;
    serving.stop().await;
}
