//! Takes that share a statement: each its own answer, and nothing lost between them.

use std::time::Duration;

use admit::{BudgetStore, Decision, Key, Now, Rules, Timestamp, UnavailableKind, Wait};
use admit_store::postgres::{PostgresConfig, PostgresStore};
use admit_testbed::{Postgres, Shutdown};
use futures::FutureExt;
use futures::future::join_all;

use crate::{INGEST, READ, charge, kind, lock_waits, rules, session, store};

fn at(micros: i64) -> Now {
    Now::At(Timestamp::from_unix_micros(1_700_000_000_000_000 + micros).unwrap())
}

fn tokens(postgres: &Postgres) -> Vec<String> {
    let answer = postgres.psql("SELECT tokens FROM admit.rate_budgets ORDER BY scope, bucket_key").unwrap();
    answer.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn many_takes_share_a_statement() {
    let postgres = Postgres::with_settings(["autovacuum=off", "checkpoint_timeout=1d"]).unwrap();
    let store = store(&postgres.url()).await;
    let one = [charge(INGEST, "hot", 1.0, "100/hour")];
    let transactions = || -> u64 {
        postgres.psql("SELECT pg_snapshot_xmax(pg_current_snapshot())").unwrap().parse().unwrap()
    };
    let before = transactions();
    let answers = join_all((0..300).map(|_| store.take(&one, Now::Store))).await;
    let granted = answers.iter().filter(|answer| answer.as_ref().unwrap().is_granted()).count();
    assert_eq!(granted, 100);
    assert!(transactions() - before <= 3, "{} transactions", transactions() - before);
    assert_eq!(
        answers.iter().position(|answer| !answer.as_ref().unwrap().is_granted()),
        Some(100),
        "first come"
    );
}

/// So many takes of many buckets are two statements at once, by halves of the buckets. Each bucket is still first come, first
/// served, and some of each half have buckets that run dry.
#[tokio::test]
async fn a_batch_in_two_statements_keeps_the_order_on_each_bucket() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let take = async |turn: usize| {
        let one = [charge(INGEST, &format!("{}", turn % 40), 1.0, "7/hour")];
        store.take(&one, at(0)).await.unwrap().is_granted()
    };
    let answers = join_all((0..800).map(take)).await;
    for (turn, granted) in answers.into_iter().enumerate() {
        assert_eq!(granted, turn / 40 < 7, "take {turn}");
    }
    assert_eq!(tokens(&postgres), vec!["0"; 40]);
}

/// A caller that went away before its take was sent was never debited; one that went away while it was in flight gets its
/// tokens back.
#[tokio::test]
async fn a_cancelled_caller_neither_loses_nor_leaks_tokens() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let one = [charge(INGEST, "k", 1.0, "10/hour")];
    assert!(store.take(&one, Now::Store).await.unwrap().is_granted());
    let holder = session(&postgres).await;
    holder.batch_execute("BEGIN; SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();

    let mut in_flight = store.take(&one, Now::Store).boxed();
    assert!((&mut in_flight).now_or_never().is_none());
    lock_waits(&postgres, "1").await;
    let mut queued = store.take(&one, Now::Store).boxed();
    let stays = store.take(&one, Now::Store);
    assert!((&mut queued).now_or_never().is_none());
    drop(in_flight);
    drop(queued);
    let (stays, _) = tokio::join!(stays, holder.batch_execute("ROLLBACK"));
    let Decision::Granted(grant) = stays.unwrap() else { panic!() };
    assert!(grant.left[0].unwrap() < 9.0, "at most what the one in flight had not given back yet");
    // What is given back waits in the same queue, so it is there after one more of it.
    store.refund(&[charge(READ, "nobody", 1.0, "1/s")]).await.unwrap();
    let left: f64 = tokens(&postgres)[0].parse().unwrap();
    assert!((8.0..8.1).contains(&left), "{left} left of 10, two were spent");
    assert_eq!(store.unanswered_takes(), 0);
}

/// Neither a grant without a debit, nor a caller that waits for ever.
#[tokio::test]
async fn a_connection_that_is_cut_is_unavailable_for_all_in_the_batch() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let hot = [charge(INGEST, "hot", 1.0, "1000/hour")];
    assert!(store.take(&hot, Now::Store).await.unwrap().is_granted());
    let before = tokens(&postgres);
    let holder = session(&postgres).await;
    holder.batch_execute("BEGIN; SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();
    let takes = join_all((0..50).map(|_| store.take(&hot, Now::Store)));
    let cut = async {
        lock_waits(&postgres, "1").await;
        postgres.psql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted").unwrap();
    };
    let (answers, ()) = tokio::join!(takes, cut);
    for answer in answers {
        assert_eq!(kind(answer), UnavailableKind::Broken);
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(tokens(&postgres), before, "nothing was granted, nothing was debited");
    assert_eq!(store.unanswered_takes(), 50);
    assert!(store.take(&hot, Now::Store).await.unwrap().is_granted());
}

/// Somebody holds the row of one bucket for longer than the store waits for locks.
#[tokio::test]
async fn a_bucket_that_is_held_keeps_no_other_waiting_for_ever() {
    let postgres = Postgres::fast().unwrap();
    let mut config = PostgresConfig::new(postgres.url());
    config.lock_timeout = Duration::from_millis(100);
    let store = PostgresStore::connect(config, rules()).await.unwrap();
    let held = [charge(INGEST, "held", 1.0, "10/s")];
    let free = [charge(READ, "free", 1.0, "10/s")];
    let both = [held[0].clone(), free[0].clone()];
    let new = [charge(READ, "new", 1.0, "10/s")];
    assert!(store.take(&both, Now::Store).await.unwrap().is_granted());
    let holder = session(&postgres).await;
    let hold = format!("BEGIN; SELECT FROM admit.rate_budgets WHERE scope = '{INGEST}' FOR UPDATE");
    holder.batch_execute(&hold).await.unwrap();
    for _ in 0..2 {
        let (on_held, on_free, on_both, on_new) = tokio::join!(
            store.take(&held, Now::Store),
            store.take(&free, Now::Store),
            store.take(&both, Now::Store),
            store.take(&new, Now::Store),
        );
        assert_eq!(kind(on_held), UnavailableKind::TimedOut);
        assert_eq!(kind(on_both), UnavailableKind::TimedOut);
        assert!(on_free.unwrap().is_granted() && on_new.unwrap().is_granted());
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert!(store.take(&both, Now::Store).await.unwrap().is_granted());
}

/// Each statement waited for the row that somebody held, for as long as statements wait for locks, and all takes waited behind it.
#[tokio::test]
async fn a_bucket_that_is_held_holds_up_one_statement_not_each() {
    let postgres = Postgres::fast().unwrap();
    let mut config = PostgresConfig::new(postgres.url());
    config.lock_timeout = Duration::from_millis(500);
    let store = PostgresStore::connect(config, rules()).await.unwrap();
    let held = [charge(INGEST, "held", 1.0, "1000/s")];
    let free = [charge(READ, "free", 1.0, "1000/s")];
    assert!(store.take(&held, Now::Store).await.unwrap().is_granted());
    let holder = session(&postgres).await;
    holder.batch_execute("BEGIN; SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();
    let rounds = async {
        for round in 0..100 {
            // Alone, and with others.
            assert_eq!(kind(store.take(&held, Now::Store).await), UnavailableKind::TimedOut, "{round}");
            let takes = [&held, &free, &held, &free].map(|charges| store.take(charges, Now::Store));
            for (i, answer) in join_all(takes).await.into_iter().enumerate() {
                match i % 2 {
                    0 => assert_eq!(kind(answer), UnavailableKind::TimedOut, "{round}"),
                    _ => assert!(answer.unwrap().is_granted(), "{round}"),
                }
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(25), rounds).await.expect("two hundred waits");
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert!(store.take(&held, Now::Store).await.unwrap().is_granted(), "known to be held, and free");
    // No more than others of its kind: it is waited for again.
    holder.batch_execute("BEGIN; SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();
    let release = async {
        lock_waits(&postgres, "1").await;
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    let (answer, ()) = tokio::join!(store.take(&held, Now::Store), release);
    assert!(answer.unwrap().is_granted());
}

/// A row that is not committed yet cannot be passed over. The second statement waited for it like the first, and failed all.
#[tokio::test]
async fn a_bucket_that_somebody_mints_by_hand_fails_alone() {
    let postgres = Postgres::fast().unwrap();
    let mut config = PostgresConfig::new(postgres.url());
    config.lock_timeout = Duration::from_millis(200);
    let store = PostgresStore::connect(config, rules()).await.unwrap();
    let key = Key::of("held");
    let holder = session(&postgres).await;
    let mint = format!("BEGIN; INSERT INTO admit.rate_budgets VALUES ('{INGEST}', '{key}', 1, now())");
    holder.batch_execute(&mint).await.unwrap();
    let held = [charge(INGEST, "held", 1.0, "10/s")];
    for _ in 0..2 {
        let free: Vec<_> = (0..9).map(|i| [charge(READ, &format!("{i}"), 1.0, "10/s")]).collect();
        let takes = free.iter().chain([&held]).chain(&free).map(|charges| store.take(charges, Now::Store));
        for (i, answer) in join_all(takes).await.into_iter().enumerate() {
            match i {
                9 => assert_eq!(kind(answer), UnavailableKind::TimedOut),
                _ => assert!(answer.unwrap().is_granted(), "{i}"),
            }
        }
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert!(store.take(&held, Now::Store).await.unwrap().is_granted());
}

#[tokio::test]
async fn a_full_queue_is_unavailable() {
    let postgres = Postgres::fast().unwrap();
    let mut config = PostgresConfig::new(postgres.url());
    config.queue = 10;
    let store = PostgresStore::connect(config, rules()).await.unwrap();
    let one = [charge(INGEST, "k", 1.0, "1000/hour")];
    let answers = join_all((0..30).map(|_| store.take(&one, Now::Store))).await;
    let (granted, full): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!(granted.len(), 10);
    assert!(full.into_iter().all(|answer| kind(answer) == UnavailableKind::Full));
}

/// A take that the tables do not accept, here for a scope that somebody took out of the constraint, fails alone.
#[tokio::test]
async fn a_take_that_fails_takes_no_other_with_it() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let check = format!("ALTER TABLE admit.rate_budgets ADD CHECK (scope <> '{READ}')");
    postgres.psql(&check).unwrap();
    let (good, bad) = ([charge(INGEST, "k", 1.0, "10/s")], [charge(READ, "k", 1.0, "10/s")]);
    let (one, two, three) = tokio::join!(
        store.take(&good, Now::Store),
        store.take(&bad, Now::Store),
        store.take(&good, Now::Store),
    );
    assert!(one.unwrap().is_granted() && three.unwrap().is_granted());
    assert_eq!(kind(two), UnavailableKind::Rejected);
}

/// While the wait lasts, the store is not asked: it may even be down.
#[tokio::test]
async fn a_bucket_that_is_known_to_be_empty_refuses_without_the_server() {
    let postgres = Postgres::start().unwrap();
    let store = store(&postgres.url()).await;
    let one = [charge(INGEST, "k", 1.0, "2/hour")];
    let (half, richer) = ([charge(INGEST, "k", 0.5, "2/hour")], [charge(INGEST, "k", 1.0, "7000/hour")]);
    assert!(store.take(&[charge(INGEST, "k", 1.5, "2/hour")], Now::Store).await.unwrap().is_granted());
    let first = store.take(&one, Now::Store).await.unwrap();
    let wait = |decision: &Decision| match decision.refusal().unwrap().longest() {
        (0, Wait::After(wait)) => wait,
        other => panic!("{other:?}"),
    };
    postgres.stop(Shutdown::Fast).unwrap();
    for _ in 0..100 {
        let again = store.take(&one, Now::Store).await.unwrap();
        assert!(wait(&again) <= wait(&first) && wait(&again) > wait(&first) - Duration::from_secs(60));
    }
    assert_eq!(kind(store.take(&half, Now::Store).await), UnavailableKind::Refused, "that may fit");
    postgres.start_again().unwrap();
    assert!(store.take(&half, Now::Store).await.unwrap().is_granted());
    assert!(!store.take(&one, Now::Store).await.unwrap().is_granted());
    assert!(!store.take(&richer, Now::Store).await.unwrap().is_granted());

    store.refund(&half).await.unwrap();
    store.refund(&half).await.unwrap();
    assert!(store.take(&one, Now::Store).await.unwrap().is_granted(), "what was given back is not forgotten");
}

/// A refusal mints no row, so a take with a bucket that has none was never refused without a statement; and each made takes of
/// its empty bucket alone ask the server again as well.
#[tokio::test]
async fn a_take_with_a_bucket_that_has_no_row_is_refused_without_the_server_too() {
    let postgres = Postgres::start().unwrap();
    let store = store(&postgres.url()).await;
    let drained = charge(INGEST, "tenant", 1.0, "1/hour");
    let with = |user| [drained.clone(), charge(READ, user, 1.0, "5/hour")];
    let alone = std::slice::from_ref(&drained);
    assert!(store.take(alone, Now::Store).await.unwrap().is_granted());
    assert!(!store.take(alone, Now::Store).await.unwrap().is_granted());
    let asked = store.take(&with("new"), Now::Store).await.unwrap();
    postgres.stop(Shutdown::Fast).unwrap();
    let remembered = store.take(&with("new"), Now::Store).await.unwrap();
    let levels = |decision: &Decision| decision.refusal().unwrap().standings[1];
    assert_eq!(levels(&remembered), levels(&asked), "what has no row is full");
    assert!(store.take(&with("another"), Now::Store).await.is_err(), "how long it waits is not known");
    assert!(!store.take(alone, Now::Store).await.unwrap().is_granted(), "nobody else has to ask for that");
}

/// The refusal is over with the wait that was told, to the microsecond, also for many charges.
#[tokio::test]
async fn a_remembered_refusal_ends_with_its_wait() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let many = [charge(INGEST, "k", 3.0, "3/s"), charge(READ, "k", 1.0, "1/s burst 5")];
    assert!(store.take(&many, at(0)).await.unwrap().is_granted());
    for micros in [0, 1, 500_000, 999_999] {
        let refused = store.take(&many, at(micros)).await.unwrap();
        let expected = Duration::from_micros(1_000_000 - micros.unsigned_abs());
        assert_eq!(refused.refusal().unwrap().longest(), (0, Wait::After(expected)));
    }
    assert!(store.take(&many, at(1_000_000)).await.unwrap().is_granted());
}

/// Takes of several buckets in all orders from two stores never wait for each other in a circle.
#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_with_many_buckets_stay_exact_and_never_deadlock() {
    let postgres = Postgres::fast().unwrap();
    let stores = [store(&postgres.url()).await, store(&postgres.url()).await];
    let (mut tasks, buckets, each) = (Vec::new(), 20_usize, 40_usize);
    for turn in 0..800 {
        let store = stores[turn % 2].clone();
        tasks.push(tokio::spawn(async move {
            let keys = [turn % buckets, (turn * 7 + 3) % buckets];
            let budget = format!("{each}/hour burst {each}");
            let charges = keys.map(|key| charge(INGEST, &format!("{key}"), 1.0, &budget));
            (keys, store.take(&charges, at(0)).await.unwrap().is_granted())
        }));
    }
    let mut spent = vec![0.0; buckets];
    for task in tasks {
        let (keys, granted) = task.await.unwrap();
        if granted {
            keys.iter().for_each(|&key| spent[key] += 1.0);
        }
    }
    let left: f64 = tokens(&postgres).iter().map(|tokens| tokens.parse::<f64>().unwrap()).sum();
    assert_eq!(left + spent.iter().sum::<f64>(), (buckets * each) as f64);
    assert!(spent.iter().all(|&spent| spent <= each as f64));
    let deadlocks =
        postgres.psql("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").unwrap();
    assert_eq!(deadlocks, "0");
    let _ = Rules::new([INGEST]);
}

/// A runtime that ended before it ran the task which was to send the takes left the store without one: takes from other
/// runtimes waited for ever.
#[test]
fn a_runtime_that_ends_leaves_the_store_to_others() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (postgres, lasting) = (Postgres::fast().unwrap(), runtime());
    let store = lasting.block_on(store(&postgres.url()));
    let one = [charge(INGEST, "k", 1.0, "10/s")];
    let brief = runtime();
    let mut taken = store.take(&one, Now::Store).boxed();
    brief.block_on(async { assert!((&mut taken).now_or_never().is_none()) });
    drop(brief);
    let within = Duration::from_secs(10);
    lasting.block_on(async {
        assert_eq!(kind(tokio::time::timeout(within, taken).await.unwrap()), UnavailableKind::Broken);
        assert!(
            tokio::time::timeout(within, store.take(&one, Now::Store)).await.unwrap().unwrap().is_granted()
        );
    });
}

/// Three takes came to 2⁵³ + 1, which is no double: the bucket paid 2⁵³ and granted all.
#[tokio::test]
async fn takes_beyond_what_doubles_count_are_not_paid_at_once() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let most = [charge(INGEST, "k", 3_002_399_751_580_331.0, "9007199254740992/s")];
    let answers = join_all((0..3).map(|_| store.take(&most, at(0)))).await;
    assert_eq!(answers.iter().filter(|answer| answer.as_ref().unwrap().is_granted()).count(), 2);
    store.refund(&[charge(INGEST, "k", 9_007_199_254_740_992.0, "9007199254740992/s")]).await.unwrap();
    let answers = join_all((0..3).map(|_| store.take(&most, at(0)))).await;
    assert_eq!(answers.iter().filter(|answer| answer.as_ref().unwrap().is_granted()).count(), 2);
}
