//! A policy that changes while requests run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reload_place;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use admit::{Clock, MonotonicClock, SystemClock};
use admit_store::ApiKey;
use admit_testbed::Postgres;
use axum::Router;
use http::StatusCode;
use reload_place::{Place, Server, budget, upstream};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

#[tokio::test]
async fn a_lowered_burst_clamps_at_once() {
    let place = Place::start("memory:", &budget("100/minute")).await;
    assert_eq!(place.granted(3).await, 3);
    place.write("admit.toml", &place.policy(&budget("5/minute")));
    place.running.reload().await.unwrap();
    assert_eq!(place.granted(20).await, 5);
}

#[tokio::test]
async fn a_raised_burst_gives_no_fresh_burst() {
    let place = Place::start("memory:", &budget("5/hour")).await;
    assert_eq!(place.granted(20).await, 5);
    place.write("admit.toml", &place.policy(&budget("1000/hour burst 500")));
    place.running.reload().await.unwrap();
    assert_eq!(place.granted(20).await, 0);
}

#[tokio::test]
async fn a_changed_plan_keeps_the_debt() {
    let members = "keys = \"keys.toml\"\n[budgets.x]\nrate = \"10/hour\"\nby = \"tenant\"\nplans.pro = \"15/hour\"\n\
                   [[routes]]\nmatch = \"GET /\"\nbudgets = [\"x\"]\n";
    let key = |plan: &str| {
        // printf %s key-of-acme | sha256sum
        let digest = "689febd264f8b977e29c0fdb75f839eb248ba07d1561b14f2b95f42756943245";
        format!("[[keys]]\nsha256 = \"{digest}\"\ntenant = \"acme\"\n{plan}")
    };
    let place = Place::with_files("memory:", members, &[("keys.toml", &key("plan = \"pro\"\n"))]).await;
    assert_eq!(place.granted(4).await, 4);
    place.write("keys.toml", &key(""));
    place.running.reload().await.unwrap();
    assert_eq!(place.granted(20).await, 10, "15 less 4, and no more than 10");
    place.write("keys.toml", &key("plan = \"pro\"\n"));
    place.running.reload().await.unwrap();
    assert_eq!(place.granted(20).await, 0, "what was spent under the small plan is spent");
}

#[tokio::test]
async fn a_bad_file_keeps_the_last_good_policy_and_is_told() {
    let place = Place::start("memory:", &budget("2/hour")).await;
    place.write("admit.toml", &place.policy(&budget("2/fortnight")));
    let told = place.running.reload().await.unwrap_err().to_string();
    assert!(told.contains("admit.toml:") && told.contains("\"2/fortnight\""), "{told}");
    assert_eq!(place.granted(5).await, 2, "the one before holds");
    let metrics = place.running.metrics().encode().unwrap();
    assert!(metrics.contains("\nadmit_policy_current 0\n"), "{metrics}");
    assert!(place.running.not_in_force().is_some());

    place.write("admit.toml", &place.policy(&budget("2/hour")));
    place.reloads("unchanged").await;
    let metrics = place.running.metrics().encode().unwrap();
    assert!(metrics.contains("\nadmit_policy_current 1\n"), "{metrics}");
    assert!(place.running.not_in_force().is_none());
}

/// Budgets that came and went left their series behind, without a bound.
#[tokio::test]
async fn a_budget_that_is_gone_leaves_no_series() {
    let place = Place::start("memory:", &budget("2/hour")).await;
    place.granted(3).await;
    assert!(place.running.metrics().encode().unwrap().contains("admit_decisions_total{budget=\"x\""));
    place.write(
        "admit.toml",
        &place.policy(&budget("2/hour").replace("budgets.x", "budgets.y").replace("\"x\"", "\"y\"")),
    );
    place.running.reload().await.unwrap();
    assert!(!place.running.metrics().encode().unwrap().contains("budget=\"x\""));
}

#[tokio::test]
async fn what_takes_a_restart_refuses_the_whole_file() {
    let place = Place::start("memory:", &budget("2/hour")).await;
    let text = place.policy(&budget("9/hour"));
    for (member, other) in [
        ("listen", text.clone() + "#"),
        ("admin", format!("admin = \"127.0.0.1:1\"\n{text}")),
        ("store", text.replace("memory:", "postgres://a:s3cret@h/d")),
    ] {
        let other = if member == "listen" { format!("listen = \"127.0.0.1:1\"\n{other}") } else { other };
        place.write("admit.toml", &other);
        let told = place.running.reload().await.unwrap_err().to_string();
        assert!(told.contains(&format!("{member} cannot change while the program runs")), "{told}");
        assert!(!told.contains("s3cret"), "{told}");
    }
    assert_eq!(place.granted(9).await, 2);
}

/// A hangup that came between the line that says where the program listens and the first step of what reloads ended it.
#[tokio::test]
async fn a_hangup_before_reloads_run_ends_nothing() {
    let place = Place::start("memory:", &budget("2/hour")).await; // What reloads has not had its turn yet.
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
    place.reloads("unchanged").await;
}

#[tokio::test]
async fn a_file_that_is_written_over_or_renamed_over_is_seen() {
    let place = Place::start("memory:", &budget("1/hour")).await;
    std::fs::write(place.file("admit.toml"), place.policy(&budget("2/hour"))).unwrap();
    place.in_force("2/hour burst 2").await;
    place.write("admit.toml.new", &place.policy(&budget("3/hour")));
    std::fs::rename(place.file("admit.toml.new"), place.file("admit.toml")).unwrap();
    place.in_force("3/hour burst 3").await;
    // As some editors do it: the old one is moved away, and a new one made.
    std::fs::rename(place.file("admit.toml"), place.file("admit.toml~")).unwrap();
    std::fs::write(place.file("admit.toml"), place.policy(&budget("4/hour"))).unwrap();
    place.in_force("4/hour burst 4").await;
}

/// Kubernetes mounts a ConfigMap as a symbolic link into a directory whose name is a link, which it swaps.
#[tokio::test]
async fn a_swapped_symlink_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let version = |name: &str, rate: &str| {
        std::fs::create_dir(root.join(name)).unwrap();
        std::fs::write(root.join(name).join("admit.toml"), Place::policy_of("memory:", &budget(rate)))
            .unwrap();
        std::os::unix::fs::symlink(name, root.join("..data_tmp")).unwrap();
        std::fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    };
    version("..1", "1/hour");
    std::os::unix::fs::symlink("..data/admit.toml", root.join("admit.toml")).unwrap();
    let place = Place::at(directory).await;
    for (name, rate) in [("..2", "2/hour"), ("..3", "3/hour")] {
        let root = place.directory.path();
        std::fs::create_dir(root.join(name)).unwrap();
        std::fs::write(root.join(name).join("admit.toml"), Place::policy_of("memory:", &budget(rate)))
            .unwrap();
        std::os::unix::fs::symlink(name, root.join("..data_tmp")).unwrap();
        std::fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        place.in_force(&format!("{rate} burst {}", &rate[..1])).await;
    }
}

#[tokio::test]
async fn a_request_that_runs_finishes_and_the_upstreams_connections_stay() {
    let (came, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (came.clone(), go.clone());
    let slow = Router::new().fallback(async move || {
        tell.notify_one();
        wait.notified().await;
        "done"
    });
    let connections = Arc::new(AtomicUsize::new(0));
    let upstream = upstream(slow, connections.clone()).await;
    let text = |rate: &str| format!("upstream = \"http://{upstream}\"\n{}", budget(rate));
    let place = Place::start("memory:", &text("9/hour")).await;
    let first = tokio::spawn(place.server.get_owned("/"));
    came.notified().await;
    place.write("admit.toml", &place.policy(&text("8/hour")));
    place.running.reload().await.unwrap();
    place.in_force("8/hour burst 8").await;
    go.notify_one();
    assert_eq!(first.await.unwrap().unwrap(), StatusCode::OK);
    go.notify_one();
    assert_eq!(place.server.get("/").await.unwrap(), StatusCode::OK);
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

/// Many clients ask while the budget changes again and again; every one of them is answered, and what is granted is no
/// more than the largest of the budgets grants, whichever store has the buckets.
async fn reload_under_load(store: &str) {
    const BUDGETS: [&str; 3] = ["40/second burst 40", "5/second burst 10", "20/second burst 60"];
    const RELOADS: usize = 60;
    let clock = MonotonicClock::start();
    let place = Place::start(store, &budget(BUDGETS[0])).await;
    let began = clock.now();
    let (granted, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let client = || {
        let (server, granted, stop) = (Server::clone(&place.server), granted.clone(), stop.clone());
        async move {
            while !stop.load(Ordering::SeqCst) {
                match server.get("/authorize").await.expect("every request is answered") {
                    StatusCode::OK => granted.fetch_add(1, Ordering::SeqCst),
                    StatusCode::TOO_MANY_REQUESTS => 0,
                    other => panic!("{other}"),
                };
            }
        }
    };
    let clients: Vec<_> = (0..16).map(|_| tokio::spawn(client())).collect();
    for i in 1..=RELOADS {
        let next = budget(BUDGETS[i % BUDGETS.len()]);
        // Scopes come and go, too.
        let more = if i % 2 == 0 { "" } else { "[budgets.a]\nrate = \"1/second\"\nby = \"ip\"\n" };
        place.write("next", &place.policy(&format!("{more}{next}")));
        std::fs::rename(place.file("next"), place.file("admit.toml")).unwrap();
        place.running.reload().await.unwrap();
        assert_eq!(place.budget(), BUDGETS[i % BUDGETS.len()]);
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let (seconds, granted) = (clock.now().since(began).as_secs_f64(), granted.load(Ordering::SeqCst));
    assert!(granted as f64 <= 60.0 + 40.0 * seconds, "{granted} in {seconds} s");
    assert!(granted >= 40, "{granted}: and the budgets are there to be used");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reload_under_load_drops_no_request_and_mints_no_token_in_memory_processes() {
    reload_under_load("memory:").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reload_under_load_drops_no_request_and_mints_no_token_in_sqlite_processes() {
    let directory = tempfile::tempdir().unwrap();
    reload_under_load(&format!("sqlite:{}", directory.path().join("admit.db").display())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reload_under_load_drops_no_request_and_mints_no_token_in_postgres_processes() {
    let postgres = Postgres::fast().unwrap();
    reload_under_load(&postgres.url()).await;
}

/// While a policy was tried again that the store refused, the store was asked for no keys: one that was revoked stayed known
/// for as long as the file lay there. So it did after a hangup if the file was wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_key_is_unknown_also_while_the_policy_on_the_disk_is_not_taken() {
    let postgres = Postgres::fast().unwrap();
    let members = "keys = \"store\"\n[budgets.x]\nrate = \"1000/hour\"\nby = \"tenant\"\n[[routes]]\n\
                   match = \"GET /\"\nbudgets = [\"x\"]\n";
    let place = Place::start(&postgres.url(), members).await;
    let key = ApiKey {
        sha256: Sha256::digest("key-of-acme").into(),
        tenant: "acme".into(),
        plan: None,
        name: None,
        created_at: SystemClock.now(),
    };
    let store = place.running.in_force().store.clone();
    let until = async |status: StatusCode| {
        let mut tick = tokio::time::interval(std::time::Duration::from_millis(20));
        let waiting = async {
            while place.server.get("/authorize").await.unwrap() != status {
                tick.tick().await;
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(30), waiting).await;
        waited.unwrap_or_else(|_| panic!("never {status}: {:?}", place.running.not_in_force()));
    };
    // As where the program's user may not change tables.
    postgres
        .psql(
            "CREATE FUNCTION no_change() RETURNS event_trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE 'no change'; END $$; \
             CREATE EVENT TRIGGER no_change ON ddl_command_start EXECUTE FUNCTION no_change()",
        )
        .unwrap();
    let more = "[budgets.a]\nrate = \"1/second\"\nby = \"ip\"\n";
    let mistakes = [format!("{members}{more}"), format!("{members}oops")];
    for mistake in mistakes {
        store.add_api_key(&key).await.unwrap();
        place.write("admit.toml", &place.policy(members));
        until(StatusCode::OK).await;
        place.write("admit.toml", &place.policy(&mistake));
        place.running.reload().await.unwrap_err();
        store.delete_api_key(key.sha256).await.unwrap();
        until(StatusCode::UNAUTHORIZED).await;
        assert!(place.running.not_in_force().is_some());
    }
    store.add_api_key(&key).await.unwrap();
    place.running.reload().await.unwrap_err();
    assert_eq!(place.server.get("/authorize").await.unwrap(), StatusCode::OK, "at once, for who asks");
}

/// A policy with a new budget came while the database was away, and was given up until somebody asked again; then the retry
/// began to wait anew whenever anything else happened, and most often never came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_the_store_could_not_take_in_an_outage_is_tried_again() {
    let postgres = Postgres::fast().unwrap();
    let place = Place::start(&postgres.url(), &budget("1/hour")).await;
    postgres.stop(admit_testbed::Shutdown::Fast).unwrap();
    let more = "[budgets.a]\nrate = \"1/second\"\nby = \"ip\"\n";
    place.write("admit.toml", &place.policy(&format!("{more}{}", budget("2/hour"))));
    let told = place.running.reload().await.unwrap_err().to_string();
    assert!(told.contains("the store does not take the policy's budgets"), "{told}");
    // One with the scopes that the store has needs no question to it.
    place.write("admit.toml", &place.policy(&budget("3/hour")));
    place.in_force("3/hour burst 3").await;
    place.write("admit.toml", &place.policy(&format!("{more}{}", budget("2/hour"))));
    place.reloads_at_least("refused", 2).await;
    postgres.start_again().unwrap();
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(20));
    let back = MonotonicClock::start();
    let began = back.now();
    while place.budget() != "2/hour burst 2" {
        // Something else in the directory changes all the time.
        place.write("other", "");
        tick.tick().await;
        assert!(back.now().since(began).as_secs() < 30, "{:?}", place.running.not_in_force());
    }
}
