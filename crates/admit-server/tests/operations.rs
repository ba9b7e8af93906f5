//! The commands of operators, as a person runs them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod program_place;

use admit_testbed::Postgres;
use data_encoding::HEXLOWER;
use program_place::{Serving, json, run};
use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const POLICY: &str = "store = \"sqlite:admit.db\"\n[budgets.hourly]\nrate = \"3600/hour\"\nby = \"header:x-user\"\n\
                      plans.pro = \"7200/hour\"\n[[routes]]\nmatch = \"* /\"\nbudgets = [\"hourly\"]\n";

fn place(policy: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("admit.toml"), policy).unwrap();
    directory
}

#[tokio::test]
async fn a_program_tells_how_it_stands() {
    let directory = place(POLICY);
    let serving = Serving::start(&directory, &["admit.toml"]).await;
    assert_eq!(serving.get("/authorize").await.0, 200);
    let url = format!("http://{}", serving.admin);
    let status = json(&directory, &["status", "--admin", &url]).await;
    assert_eq!(status["healthy"], true);
    assert_eq!(status["policy"]["from"], "admit.toml");
    assert_eq!((&status["policy"]["current"], &status["policy"]["budgets"]), (&json!(true), &json!(1)));
    assert_eq!((&status["store"]["kind"], &status["store"]["health"]), (&json!("sqlite"), &json!("up")));
    assert_eq!(status["decisions"]["granted"], 1);

    std::fs::write(directory.path().join("admit.toml"), "up_stream = 1").unwrap();
    serving.signal(rustix::process::Signal::HUP);
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(20));
    let (code, said) = loop {
        let (code, said, _) = run(&directory, &["status", "--admin", &url]).await;
        if code != 0 {
            break (code, said);
        }
        tick.tick().await;
    };
    assert_eq!(code, 1);
    assert!(said.starts_with("not healthy\n") && said.contains("did you mean \"upstream\"?"), "{said}");
    serving.stop().await;
    let (code, _, said) = run(&directory, &["status", "--admin", &url]).await;
    assert!(code == 2 && said.contains("cannot be asked"), "{said}");
}

/// Nothing told how many takes the store was spared.
#[tokio::test]
async fn refusals_that_need_no_store_are_counted() {
    let directory = place(&POLICY.replace("3600/hour", "1/hour burst 1"));
    let serving = Serving::start(&directory, &["admit.toml"]).await;
    let remembered = async || {
        let metrics = serving.ask_admin("/metrics").await.1;
        let mut lines = metrics.lines();
        let name = "admit_store_remembered_refusals_total ";
        lines.find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok()).unwrap()
    };
    // The second is refused by the store.
    for (status, spared) in [(200, 0), (429, 0), (429, 1), (429, 2)] {
        assert_eq!((serving.get("/authorize").await.0, remembered().await), (status, spared));
    }
    serving.stop().await;
}

/// `admit status` spoke HTTP in the clear alone: an admin listener with a certificate could not be asked, and one that asks
/// for its clients' even less.
#[tokio::test]
async fn an_encrypted_admin_listener_is_asked_with_a_certificate() {
    let tls = "admin_tls = { certificate = \"own.pem\", key = \"own.key\", client_ca = \"own.pem\" }\n";
    let directory = place(&format!("{tls}{POLICY}"));
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(directory.path().join("own.pem"), issued.cert.pem()).unwrap();
    std::fs::write(directory.path().join("own.key"), issued.signing_key.serialize_pem()).unwrap();
    let serving = Serving::start(&directory, &["admit.toml"]).await;
    let url = format!("https://{}", serving.admin);
    let whole =
        ["status", "--admin", &url, "--ca", "own.pem", "--certificate", "own.pem", "--key", "own.key"];
    assert_eq!(json(&directory, &whole).await["healthy"], true);
    for (arguments, why) in
        [(&whole[..3], "certificate"), (&whole[..5], "ertificate"), (&whole[..7], "--key")]
    {
        let (code, _, said) = run(&directory, arguments).await;
        assert!(code == 2 && said.contains(why), "{code} {said}");
    }
    let (code, _, said) = run(&directory, &["status", "--admin", &url, "--ca", "admit.toml"]).await;
    assert!(code == 2 && said.contains("admit.toml holds no certificate"), "{said}");
    serving.stop().await;
}

#[tokio::test]
async fn buckets_are_listed_shown_and_reset() {
    let directory = place(POLICY);
    let serving = Serving::start(&directory, &["admit.toml"]).await;
    serving.get("/authorize").await;
    serving.stop().await;
    let nobody = admit::Key::of("").to_string(); // Who sends no header shares a bucket.
    let policy = ["--policy", "admit.toml"];
    let with = |arguments: &[&'static str]| -> Vec<String> {
        arguments.iter().chain(&policy).map(|argument| (*argument).to_owned()).collect()
    };
    async fn ask(directory: &TempDir, arguments: Vec<String>) -> serde_json::Value {
        json(directory, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
    }
    let page = ask(&directory, with(&["buckets", "list", "hourly", "--limit", "1"])).await;
    assert_eq!((&page["buckets"][0]["key"], &page["next"]), (&json!(nobody), &json!(null)));

    let shown = ask(&directory, with(&["buckets", "show", "hourly", ""])).await;
    let level = shown["level"].as_f64().unwrap();
    assert!((3_599.0..=3_600.0).contains(&level) && shown["burst"] == 3_600.0, "{shown}");
    let pro = ask(&directory, with(&["buckets", "show", "hourly", "", "--plan", "pro"])).await;
    assert_eq!(pro["burst"], 7_200.0);
    assert_eq!(ask(&directory, with(&["buckets", "show", "hourly", "ann"])).await["full_in_seconds"], 0.0);

    let (code, _, said) =
        run(&directory, &["buckets", "reset", "hourly", "", "--policy", "admit.toml"]).await;
    assert!(code == 1 && said.contains("add --yes"), "without a terminal it asks nobody: {said}");
    let reset = ["buckets", "reset", "hourly", "", "--yes", "--policy", "admit.toml"];
    assert_eq!(json(&directory, &reset).await["existed"], true);
    let (_, said, log) = run(&directory, &reset).await;
    assert!(
        said.contains("there is no bucket") && log.contains("a bucket was reset by the command line"),
        "{log}"
    );
    let (code, _, said) =
        run(&directory, &["buckets", "show", "daily", "ann", "--policy", "admit.toml"]).await;
    assert!(code == 1 && said.contains("no budget \"daily\"; it has hourly"), "{said}");
    let (code, _, said) = run(&directory, &["buckets", "list", "hourly", "--store", "memory:"]).await;
    assert!(code == 1 && said.contains("POST /buckets/reset"), "{said}");
}

/// A budget by address or by several parts could not be named: `show hourly 127.0.0.1` told of a bucket that nothing is
/// charged on, and a reset of it did nothing.
#[tokio::test]
async fn a_bucket_is_named_by_what_its_budget_is_kept_by() {
    let digest = HEXLOWER.encode(&Sha256::digest("t0ken"));
    let directory = place(&format!(
        "admin_tokens = \"{digest}\"\nstore = \"sqlite:admit.db\"\n\
         budgets.address = {{ rate = \"10/hour\", by = \"ip\" }}\n\
         budgets.parts = {{ rate = \"10/hour\", by = [\"const:a\", \"header:x-user\", \"path:project\"] }}\n\
         routes = {{ match = \"* /{{project}}\", budgets = [\"address\", \"parts\"] }}"
    ));
    let serving = Serving::start(&directory, &["admit.toml"]).await;
    let bodies = [
        json!({"scope": "address", "key": "127.0.0.1"}),
        json!({"scope": "parts", "key": ["ann", "garden"]}),
    ];
    for named in [&["address", "127.0.0.1"][..], &["parts", "ann", "garden"]] {
        assert_eq!(serving.get_with("/authorize/garden", "x-user", "ann").await, 200);
        let show = [&["buckets", "show", "--policy", "admit.toml"], named].concat();
        let shown = json(&directory, &show).await;
        assert!(shown["level"].as_f64().unwrap() < 9.1, "{shown}");
        let reset = [&["buckets", "reset", "--yes", "--policy", "admit.toml"], named].concat();
        assert_eq!(json(&directory, &reset).await["existed"], true, "{named:?}");
    }
    assert_eq!(serving.get_with("/authorize/garden", "x-user", "ann").await, 200);
    for body in bodies {
        let (_, answer) = serving.change("/buckets/reset", "t0ken", &body.to_string()).await;
        assert_eq!(answer["existed"], true, "{body}: {answer}");
    }
    let (status, problem) =
        serving.change("/buckets/reset", "t0ken", "{\"scope\": \"parts\", \"key\": \"ann\"}").await;
    assert!(status == 400 && problem["detail"].as_str().unwrap().contains("has 2 parts"), "{problem}");
    serving.stop().await;
}

/// A scope that callers bring budgets to was no budget of the policy, and its buckets could neither be seen nor reset.
#[tokio::test]
async fn buckets_of_budgets_that_callers_bring_are_listed_shown_and_reset() {
    let token = HEXLOWER.encode(&Sha256::digest("t"));
    let directory = place(&format!(
        "store = \"sqlite:admit.db\"\nscopes = [\"exports\"]\nadmin_tokens = [\"{token}\"]\n"
    ));
    let url = format!("sqlite:{}", directory.path().join("admit.db").display());
    let scope: admit::Scope = "exports".parse().unwrap();
    let rules = admit::Rules::new([scope.clone()]).unwrap();
    let store = admit_store::AnyStore::open(&url, rules).await.unwrap();
    let ann = admit::Charge::one(scope, admit::Key::of("ann"), "10/hour".parse().unwrap());
    assert!(
        admit::BudgetStore::take(&store, std::slice::from_ref(&ann), admit::Now::Store)
            .await
            .unwrap()
            .is_granted()
    );
    let policy = ["--policy", "admit.toml"];
    for list in [&["buckets", "list", "exports"][..], &["buckets", "show", "exports", "ann"]] {
        let (code, _, said) = run(&directory, &[list, &policy].concat()).await;
        assert!(code == 1 && said.contains("add --budget"), "{said}");
        let told = json(&directory, &[list, &policy, &["--budget", "10/hour"]].concat()).await;
        assert!(told.to_string().contains("\"level\":9."), "{told}");
    }
    let reset =
        json(&directory, &[&["buckets", "reset", "exports", "ann", "--yes"][..], &policy].concat()).await;
    assert_eq!(reset["existed"], true);
    let serving = Serving::start(&directory, &["admit.toml"]).await;
    let (status, reset) =
        serving.change("/buckets/reset", "t", "{\"scope\": \"exports\", \"key\": \"ann\"}").await;
    assert_eq!((status, &reset["existed"]), (200, &json!(false)), "{reset}");
    serving.stop().await;
}

#[tokio::test]
async fn pages_follow_each_other_in_every_store_processes() {
    let postgres = Postgres::fast().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", directory.path().join("a.db").display());
    for url in ["memory:", &file, &postgres.url()] {
        let scopes = ["a", "b"].map(|scope| scope.parse::<admit::Scope>().unwrap());
        let store =
            admit_store::AnyStore::open(url, admit::Rules::new(scopes.clone()).unwrap()).await.unwrap();
        let mut keys: Vec<admit::Key> = (0..7).map(|i| admit::Key::of(&format!("k{i}"))).collect();
        for (key, scope) in keys.iter().zip(scopes.iter().cycle()) {
            for scope in [scope, &scopes[0]] {
                let charge = admit::Charge::one(scope.clone(), *key, "10/minute".parse().unwrap());
                assert!(
                    admit::BudgetStore::take(&store, &[charge], admit::Now::Store)
                        .await
                        .unwrap()
                        .is_granted()
                );
            }
        }
        keys.sort();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = store.buckets(&scopes[0], after, 3).await.unwrap();
            let Some((last, _)) = page.last() else { break };
            after = Some(*last);
            seen.extend(page.into_iter().map(|(key, _)| key));
        }
        assert_eq!(seen, keys, "{url}");
        assert!(store.bucket(&scopes[0], keys[3]).await.unwrap().is_some());
        assert!(store.delete_bucket(&scopes[0], keys[3]).await.unwrap());
        assert!(!store.delete_bucket(&scopes[0], keys[3]).await.unwrap());
        assert!(store.bucket(&scopes[0], keys[3]).await.unwrap().is_none());
    }
}

/// `admit sweep --store URL` went by the starter policy, whose retention is an hour: of a budget for a day it deleted buckets
/// that were far from full, and the next request minted them.
#[tokio::test]
async fn a_sweep_is_told_the_policy_whose_retention_it_goes_by() {
    let directory = place(POLICY);
    let (code, _, said) = run(&directory, &["sweep", "--store", "sqlite:admit.db"]).await;
    assert!(code == 2 && said.contains("--policy <FILE>"), "{said}");
    // It was told to reset a bucket.
    let (code, _, said) = run(&directory, &["sweep", "--policy", "admit.toml", "--store", "memory:"]).await;
    assert!(code == 1 && said.contains("sweeps it every hour") && !said.contains("reset"), "{said}");
}

/// `admit sweep` by the policy of one program deleted what the daily budget of another on the same file was owed.
#[tokio::test]
async fn a_sweep_by_another_policy_deletes_nothing_that_is_owed() {
    let directory = place(POLICY);
    let url = format!("sqlite:{}", directory.path().join("admit.db").display());
    let daily: admit::Scope = "daily".parse().unwrap();
    let retention = admit::Retention::new(std::time::Duration::from_secs(86_400)).unwrap();
    let rules = admit::Rules { retention, ..admit::Rules::new([daily.clone()]).unwrap() };
    let store = admit_store::AnyStore::open(&url, rules).await.unwrap();
    let two_hours_ago =
        admit::Clock::now(&admit::SystemClock).saturating_sub(std::time::Duration::from_secs(2 * 3_600));
    let charge = admit::Charge::one(daily, admit::Key::of("k"), "24/day".parse().unwrap());
    let taken = admit::BudgetStore::take(&store, &[charge], admit::Now::At(two_hours_ago)).await.unwrap();
    assert!(taken.is_granted());
    drop(store);
    let swept = json(&directory, &["sweep", "--policy", "admit.toml"]).await;
    assert_eq!(swept, json!({"buckets": 0, "records": 0}));
}

#[tokio::test]
async fn migrate_makes_what_is_missing_once_processes() {
    let (directory, postgres) = (place(POLICY), Postgres::fast().unwrap());
    let url = postgres.url();
    let (code, _, said) = run(&directory, &["sweep", "--policy", "admit.toml"]).await;
    assert!(code == 1 && said.contains("there is no admit.db"), "{said}");
    let (code, _, said) = run(&directory, &["sweep", "--policy", "admit.toml", "--store", &url]).await;
    assert!(code == 1 && said.contains("migrate it first"), "{said}");
    for store in [&["migrate", "admit.toml"][..], &["migrate", "admit.toml", "--store", &url]] {
        let done = json(&directory, store).await["migrated"].to_string();
        assert!(done.contains("migration") && done.contains("hourly"), "{done}");
        assert_eq!(json(&directory, store).await["migrated"], json!(null), "all is there");
    }
    let swept = json(&directory, &["sweep", "--policy", "admit.toml", "--store", &url]).await;
    assert_eq!(swept, json!({"buckets": 0, "records": 0}));
}

#[tokio::test]
async fn only_who_has_a_token_changes_something_at_the_admin_listener() {
    let directory = place(POLICY);
    let serving = Serving::start(&directory, &["admit.toml"]).await;
    let body = "{\"scope\": \"hourly\", \"key\": \"\"}";
    for path in ["/reload", "/buckets/reset"] {
        let (status, problem) = serving.change(path, "t0ken", body).await;
        assert!(
            status == 404 && problem["detail"].as_str().unwrap().contains("admin_tokens = "),
            "{problem}"
        );
    }
    let digest = HEXLOWER.encode(&Sha256::digest("t0ken"));
    std::fs::write(directory.path().join("admit.toml"), format!("admin_tokens = [\"{digest}\"]\n{POLICY}"))
        .unwrap();
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(20));
    while serving.change("/reload", "wrong", "").await.0 == 404 {
        tick.tick().await;
    }
    assert_eq!(serving.change("/reload", "wrong", "").await.0, 401);
    assert_eq!(serving.change("/reload", "t0ken", "").await, (200, json!({"outcome": "unchanged"})));

    serving.get("/authorize").await;
    assert_eq!(serving.change("/buckets/reset", "wrong", body).await.0, 401);
    assert_eq!(serving.change("/buckets/reset", "t0ken", body).await.1["existed"], true);
    assert_eq!(serving.change("/buckets/reset", "t0ken", body).await.1["existed"], false);
    assert_eq!(serving.change("/buckets/reset", "t0ken", "{}").await.0, 400);

    std::fs::write(directory.path().join("admit.toml"), "nonsense = 1").unwrap();
    let (status, problem) = serving.change("/reload", "t0ken", "").await;
    assert!(status == 422 && problem["policy"].as_str().unwrap().contains("admit.toml:1:1"), "{problem}");
    serving.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_told_as_json_too() {
    let directory = place("up_stream = 1\n");
    let (code, said, _) = run(&directory, &["check", "admit.toml", "--json"]).await;
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &told["usable"]), (1, &json!(false)));
    let expected = json!({"message": "a policy takes no \"up_stream\"", "help": "did you mean \"upstream\"?", "line": 1, "column": 1});
    assert_eq!(told["problems"], json!([expected]));
    assert_eq!(json(&directory, &["key", "ann"]).await["key"], admit::Key::of("ann").to_string());
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = run(&directory, &["completions", shell]).await;
        assert!(code == 0 && script.contains("buckets") && script.contains("upstream"));
    }
}
