//! A server that is down, hangs, or cuts a connection off: neither a grant nor a refusal, and over when it is over.

use std::sync::atomic::Ordering;
use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Terms};
use admit::{BudgetStore, Decision, IdempotencyError, IdempotencyStore, Now, TakeError, UnavailableKind};
use admit_store::postgres::{PostgresConfig, PostgresStore, tokio_postgres};
use admit_testbed::{Postgres, Shutdown};
use futures::FutureExt;
use futures::future::join_all;

use crate::{INGEST, READ, SETTINGS, charge, kind, lock_waits, rules, session};

async fn hasty(url: String) -> PostgresStore {
    hasty_with(url, SETTINGS[0]).await
}

async fn hasty_with(url: String, (batch, refusals): (usize, usize)) -> PostgresStore {
    let mut config = PostgresConfig::new(url);
    (config.batch, config.refusals) = (batch, refusals);
    config.acquire_timeout = Duration::from_millis(500);
    config.statement_timeout = Duration::from_millis(500);
    config.lock_timeout = Duration::from_millis(200);
    PostgresStore::connect(config, rules()).await.unwrap()
}

/// A take that must end within a few of the store's time limits.
async fn take(store: &PostgresStore) -> Result<Decision, TakeError> {
    let charges = [charge(INGEST, "k", 1.0, "1000/s")];
    tokio::time::timeout(Duration::from_secs(10), store.take(&charges, Now::Store)).await.expect("hangs")
}

#[tokio::test]
async fn a_server_with_too_many_connections_refuses() {
    let few = ["max_connections=3", "superuser_reserved_connections=0", "autovacuum=off"];
    let postgres = Postgres::with_settings(few).unwrap();
    let store = hasty(postgres.url()).await;
    let mut others = Vec::new();
    while let Ok((client, connection)) = tokio_postgres::connect(&postgres.url(), tokio_postgres::NoTls).await
    {
        others.push((client, tokio::spawn(connection)));
    }
    // Takes share a connection; looks do not.
    let charges = [charge(INGEST, "k", 1.0, "1000/s")];
    let kinds = join_all((0..20).map(|_| store.peek(&charges, Now::Store))).await;
    let refused = kinds.into_iter().filter_map(Result::err).map(|error| kind(Err(error))).collect::<Vec<_>>();
    assert!(
        !refused.is_empty() && refused.iter().all(|kind| *kind == UnavailableKind::Refused),
        "{refused:?}"
    );
}

/// A full disk, and a lock that was waited for in vain, were told as a statement that the server refuses, as it refuses those
/// without rights.
#[tokio::test]
async fn a_full_disk_and_a_held_lock_are_no_missing_rights() {
    let postgres = Postgres::fast().unwrap();
    let store = hasty(postgres.url()).await;
    let fails_with = |code: &str| {
        let function = format!(
            "CREATE OR REPLACE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'as asked' USING ERRCODE = '{code}'; END $$"
        );
        postgres.psql(&function).unwrap();
    };
    fails_with("53100");
    postgres
        .psql("CREATE TRIGGER fails BEFORE INSERT OR UPDATE ON admit.rate_budgets EXECUTE FUNCTION fails()")
        .unwrap();
    for (code, expected) in [
        ("53100", UnavailableKind::Full),
        ("55P03", UnavailableKind::TimedOut),
        ("57014", UnavailableKind::TimedOut),
        ("42501", UnavailableKind::Rejected),
    ] {
        fails_with(code);
        assert_eq!(kind(take(&store).await), expected, "{code}");
    }
}

#[tokio::test]
async fn stopped_is_unavailable_and_started_again_works() {
    let postgres = Postgres::start().unwrap();
    let tcp = postgres.tcp_url_for("postgres");
    for (url, settings) in [(postgres.url(), SETTINGS[0]), (tcp, SETTINGS[3])] {
        let store = hasty_with(url, settings).await;
        for shutdown in [Shutdown::Fast, Shutdown::Immediate] {
            assert!(take(&store).await.unwrap().is_granted());
            postgres.stop(shutdown).unwrap();
            let kinds =
                join_all((0..20).map(|_| take(&store))).await.into_iter().map(kind).collect::<Vec<_>>();
            assert!(
                kinds.iter().all(|kind| matches!(kind, UnavailableKind::Refused | UnavailableKind::Broken))
            );
            assert_eq!(kind(take(&store).await), UnavailableKind::Refused, "nobody listens");
            postgres.start_again().unwrap();
            assert!(take(&store).await.unwrap().is_granted());
        }
    }
}

#[tokio::test]
async fn paused_is_unavailable_within_the_time_limit() {
    let postgres = Postgres::start().unwrap();
    let stores = join_all(SETTINGS.map(|settings| hasty_with(postgres.url(), settings))).await;
    let take_all = || join_all(stores.iter().cycle().take(30 * SETTINGS.len()).map(take));
    assert!(take_all().await.into_iter().all(|answer| answer.unwrap().is_granted()));
    postgres.pause().unwrap();
    for answer in take_all().await {
        assert_eq!(kind(answer), UnavailableKind::TimedOut, "a silent server refuses nothing");
    }
    postgres.resume().unwrap();
    for store in &stores {
        assert!(take(store).await.unwrap().is_granted());
    }
}

/// Sessions that began while the server was read-only stayed so and went back to the pool, and takes failed on them long
/// after it was writable again.
#[tokio::test]
async fn read_only_is_unavailable_and_over_when_it_is_over() {
    let postgres = Postgres::fast().unwrap();
    let store = hasty(postgres.url()).await;
    assert!(take(&store).await.unwrap().is_granted());
    let setting = "ALTER DATABASE postgres SET default_transaction_read_only = on";
    postgres.psql_in("template1", setting).unwrap();
    let ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'admit'";
    postgres.psql_in("template1", ending).unwrap();
    for _ in 0..20 {
        assert!(matches!(take(&store).await, Err(TakeError::Unavailable(_))));
    }
    postgres.psql_in("template1", "ALTER DATABASE postgres RESET default_transaction_read_only").unwrap();
    assert!(take(&store).await.unwrap().is_granted());
}

/// The connection of a take that its caller gave up went back to the pool with the statement still running on it, and
/// the next takes waited behind that.
#[tokio::test]
async fn no_take_waits_behind_the_statement_of_a_dropped_one() {
    let postgres = Postgres::fast().unwrap();
    let mut config = PostgresConfig::new(postgres.url());
    config.connections = 2;
    config.lock_timeout = Duration::from_secs(600);
    config.statement_timeout = Duration::from_secs(600);
    let store = PostgresStore::connect(config, rules()).await.unwrap();
    assert!(take(&store).await.unwrap().is_granted());
    let client = session(&postgres).await;
    client.batch_execute("BEGIN; SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();

    let dropped = async { take(&store).await };
    tokio::select! {
        _ = dropped => panic!("the row is locked"),
        () = lock_waits(&postgres, "1") => {}
    }
    let other = [charge(READ, "other", 1.0, "1000/s")];
    for _ in 0..10 {
        let other = store.take(&other, Now::Store);
        let granted = tokio::time::timeout(Duration::from_secs(30), other).await.expect("waits behind it");
        assert!(granted.unwrap().is_granted());
    }
    lock_waits(&postgres, "0").await; // What nobody waits for any more is cancelled.
    client.batch_execute("ROLLBACK").await.unwrap();
    assert!(take(&store).await.unwrap().is_granted());
}

/// The bound on waiting was looked at only when the statement before had ended, so that who waited behind one that was stuck
/// heard of it late, or never.
#[tokio::test]
async fn who_waits_behind_a_stuck_statement_hears_of_it_in_time() {
    let postgres = Postgres::fast().unwrap();
    let mut config = PostgresConfig::new(postgres.url());
    config.acquire_timeout = Duration::from_secs(1);
    config.lock_timeout = Duration::from_secs(600);
    config.statement_timeout = Duration::from_secs(600);
    let store = PostgresStore::connect(config, rules()).await.unwrap();
    assert!(take(&store).await.unwrap().is_granted());
    let client = session(&postgres).await;
    client.batch_execute("BEGIN; SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();

    let mut stuck = std::pin::pin!(take(&store));
    tokio::select! {
        _ = &mut stuck => panic!("the row is locked"),
        () = lock_waits(&postgres, "1") => {}
    }
    let other = [charge(READ, "other", 1.0, "1000/s")];
    let other = tokio::time::timeout(Duration::from_secs(60), store.take(&other, Now::Store)).await;
    assert_eq!(kind(other.expect("waits for the stuck one")), UnavailableKind::TimedOut);
    assert!(stuck.as_mut().now_or_never().is_none(), "it began, and is waited for");
    client.batch_execute("ROLLBACK").await.unwrap();
    assert!(stuck.await.unwrap().is_granted());
}

/// The statements are sent by a task of the runtime whose caller came first. Where nobody runs that one, callers in another
/// waited for ever.
#[test]
fn a_runtime_that_nobody_runs_keeps_no_caller_of_another_waiting() {
    let postgres = Postgres::fast().unwrap();
    let [first, second] =
        [(); 2].map(|()| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
    let store = first.block_on(hasty(postgres.url()));
    for _ in 0..3 {
        assert!(first.block_on(take(&store)).unwrap().is_granted());
    }
    let answer = second.block_on(async { tokio::time::timeout(Duration::from_secs(60), take(&store)).await });
    let _ = answer.expect("it is answered"); // The first runtime has the connections too: perhaps unavailable.
}

/// A statement in flight may have debited when its runtime ends, and was not counted.
#[test]
fn a_statement_that_ends_with_its_runtime_is_counted() {
    let postgres = Postgres::fast().unwrap();
    let [watching, ending] = [(); 2].map(|()| tokio::runtime::Runtime::new().unwrap());
    let mut config = PostgresConfig::new(postgres.url());
    config.lock_timeout = Duration::from_secs(600);
    config.statement_timeout = Duration::from_secs(600);
    let store = ending.block_on(PostgresStore::connect(config, rules())).unwrap();
    assert!(ending.block_on(take(&store)).unwrap().is_granted());
    let client = watching.block_on(async {
        let client = session(&postgres).await;
        client.batch_execute("BEGIN; SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();
        client
    });
    ending.spawn({
        let store = store.clone();
        async move { take(&store).await }
    });
    watching.block_on(lock_waits(&postgres, "1"));
    assert_eq!(store.unanswered_takes(), 0);
    ending.shutdown_timeout(Duration::from_secs(60));
    assert_eq!(store.unanswered_takes(), 1);
    drop(client);
}

/// However many takes are dropped while the server hangs, the next ones are served at once when it goes on, and by no
/// more connections than the pool may have.
#[tokio::test]
async fn takes_dropped_in_an_outage_cost_no_connections_beyond_the_bound() {
    let postgres = Postgres::start().unwrap();
    let mut config = PostgresConfig::new(postgres.url());
    config.connections = 3;
    let store = PostgresStore::connect(config, rules()).await.unwrap();
    for granted in join_all((0..10).map(|_| take(&store))).await {
        assert!(granted.unwrap().is_granted());
    }
    for _ in 0..3 {
        postgres.pause().unwrap();
        for _ in 0..50 {
            assert!(take(&store).now_or_never().is_none(), "nothing answers");
        }
        postgres.resume().unwrap();
        for granted in join_all((0..10).map(|_| take(&store))).await {
            assert!(granted.unwrap().is_granted());
        }
        let connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'admit'";
        let connections: usize = postgres.psql(connections).unwrap().parse().unwrap();
        assert!(connections <= 3, "{connections} connections");
    }
}

#[tokio::test]
async fn a_locked_row_is_waited_for_no_longer_than_the_limit() {
    let postgres = Postgres::fast().unwrap();
    let store = hasty(postgres.url()).await;
    assert!(take(&store).await.unwrap().is_granted());
    let mut client: tokio_postgres::Config = postgres.url().parse().unwrap();
    let (mut client, connection) =
        client.application_name("holder").connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let holder = client.transaction().await.unwrap();
    holder.batch_execute("SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();
    let error = take(&store).await.unwrap_err();
    assert!(crate::chain(&error).contains("somebody else holds the bucket"), "{}", crate::chain(&error));
    holder.rollback().await.unwrap();
    assert!(take(&store).await.unwrap().is_granted());
}

/// Renewals and releases had no bound of their own on a record that a service's transaction had locked.
#[tokio::test]
async fn a_locked_record_is_waited_for_no_longer_than_the_limit() {
    let postgres = Postgres::fast().unwrap();
    let mut config = PostgresConfig::new(postgres.url());
    config.lock_timeout = Duration::from_millis(200);
    config.statement_timeout = Duration::from_secs(60);
    let store = PostgresStore::connect(config, rules()).await.unwrap();
    let (key, terms) = (RecordKey::new("tenant", "POST", "/", "k"), Terms::default());
    let claimed = store.claim(&key, &Fingerprint::of(""), &terms, Now::Store).await.unwrap();
    let Claim::Run(ticket) = claimed else { panic!("the key was free") };

    let mut client = session(&postgres).await;
    let service = client.transaction().await.unwrap();
    let outcome = Outcome::Tombstone { status: 200 };
    store.complete_in(&service, &ticket, &outcome, &terms, Now::Store).await.unwrap();
    let renewed = store.renew(&ticket, &terms, Now::Store).await.map(|_| ());
    for answer in [renewed, store.release(&ticket, Now::Store).await] {
        let error = answer.unwrap_err();
        assert!(matches!(error, IdempotencyError::Unavailable(_)), "{error:?}");
        assert!(crate::chain(&error).contains("lock timeout"), "{}", crate::chain(&error));
    }
    service.rollback().await.unwrap();
    store.renew(&ticket, &terms, Now::Store).await.unwrap();
    store.release(&ticket, Now::Store).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_cut_off_under_load_never_grant_without_a_debit() {
    let postgres = std::sync::Arc::new(Postgres::start().unwrap());
    for settings in SETTINGS {
        cut_off_under_load(&postgres, settings).await;
    }
}

async fn cut_off_under_load(postgres: &std::sync::Arc<Postgres>, settings: (usize, usize)) {
    let store = hasty_with(postgres.url(), settings).await;
    postgres.psql("TRUNCATE admit.rate_budgets").unwrap();
    /// At least; they go on until a connection was cut off.
    const TAKES: usize = 400;
    let was_cut = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
    let one = charge(INGEST, "hot", 1.0, "100000/h burst 20000");
    let first = at_zero(&store, &one).await;
    let callers = (0..8).map(|_| {
        let (store, one, was_cut) = (store.clone(), one.clone(), was_cut.clone());
        tokio::spawn(async move {
            let (mut granted, mut failed, mut taken) = (0, 0, 0);
            while taken < TAKES / 8 || !was_cut.load(Ordering::SeqCst) {
                taken += 1;
                match store.take(std::slice::from_ref(&one), first).await {
                    Ok(decision) => granted += usize::from(decision.is_granted()),
                    Err(TakeError::Unavailable(_)) => {
                        failed += 1;
                        was_cut.store(true, Ordering::SeqCst);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            (granted, failed)
        })
    });
    let cut =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'admit'";
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let cutter = std::thread::spawn({
        let postgres = postgres.clone();
        move || {
            while is_done.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                postgres.psql(cut).unwrap();
            }
        }
    });
    let outcomes: Vec<(usize, usize)> = join_all(callers).await.into_iter().map(Result::unwrap).collect();
    drop(done);
    cutter.join().unwrap();
    let granted: usize = outcomes.iter().map(|(granted, _)| granted).sum();
    let failed: usize = outcomes.iter().map(|(_, failed)| failed).sum();
    let left: f64 = postgres.psql("SELECT tokens FROM admit.rate_budgets").unwrap().parse().unwrap();
    let debited = 20_000.0 - 1.0 - left;
    assert!(
        granted as f64 <= debited && debited <= (granted + failed) as f64,
        "{settings:?}: {granted} {failed} {debited}"
    );
}

/// Takes once, and returns the moment, at which no more tokens come.
async fn at_zero(store: &PostgresStore, charge: &admit::Charge) -> Now {
    let Decision::Granted(grant) = store.take(std::slice::from_ref(charge), Now::Store).await.unwrap() else {
        panic!()
    };
    Now::At(grant.at.unwrap())
}
