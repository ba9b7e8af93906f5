//! Rows that somebody holds for long: unavailable to those that need them, and to nobody else.

use std::time::Duration;

use admit::idempotency::{Fingerprint, RecordKey, Terms};
use admit::{AdmissionStore, BudgetStore, Charge, Key, Now, UnavailableKind, Verdict};
use admit_store::postgres::{PostgresConfig, PostgresStore, tokio_postgres};
use admit_testbed::Postgres;
use futures::future::join_all;

use crate::{INGEST, READ, charge, kind, lock_waits, rules, session, waits_for_rows};

/// Two replicas whose statements wait for rows up to half a second.
async fn two(postgres: &Postgres) -> [PostgresStore; 2] {
    let connect = async || {
        let mut config = PostgresConfig::new(postgres.url());
        config.lock_timeout = Duration::from_millis(500);
        PostgresStore::connect(config, rules()).await.unwrap()
    };
    [connect().await, connect().await]
}

/// Holds the row of the bucket "stuck".
async fn hold(postgres: &Postgres) -> tokio_postgres::Client {
    let holder = session(postgres).await;
    holder.batch_execute(&holding()).await.unwrap();
    holder
}

fn holding() -> String {
    format!("BEGIN; SELECT FROM admit.rate_budgets WHERE bucket_key = '{}' FOR UPDATE", Key::of("stuck"))
}

/// A store whose statements wait for rows that long, and whose callers wait longer.
async fn waiting_for(postgres: &Postgres, lock_timeout: Duration) -> PostgresStore {
    let mut config = PostgresConfig::new(postgres.url());
    config.lock_timeout = lock_timeout;
    (config.acquire_timeout, config.statement_timeout) = (Duration::from_secs(60), Duration::from_secs(60));
    PostgresStore::connect(config, rules()).await.unwrap()
}

/// Two buckets that come before and after a third, "stuck", in the order of the locks. Each has a row.
async fn hot_and_stuck(store: &PostgresStore) -> ([Charge; 2], Charge) {
    let hot = [charge(INGEST, "hot", 1.0, "1000000/s"), charge(READ, "hot", 1.0, "1000000/s")];
    let stuck = charge(INGEST, "stuck", 1.0, "1000000/s");
    for one in hot.iter().chain([&stuck]) {
        assert!(store.take(std::slice::from_ref(one), Now::Store).await.unwrap().is_granted());
    }
    (hot, stuck)
}

/// Twelve buckets, and "stuck", which comes after them in the order of the locks. Each has a row.
async fn many_and_stuck(store: &PostgresStore) -> Vec<Charge> {
    let hot = (0..12).map(|i| charge(INGEST, &format!("{i}"), 1.0, "1000/s"));
    let all: Vec<_> = hot.chain([charge(READ, "stuck", 1.0, "1000/s")]).collect();
    for one in &all {
        assert!(store.take(std::slice::from_ref(one), Now::Store).await.unwrap().is_granted());
    }
    all
}

/// The statement that was sent again in place of one that had waited in vain passed over the rows that another replica's statement
/// was just writing too. So takes of a hot bucket were unavailable because of a row that none of them needs; and who needs both
/// had the hot one taken for held, for ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_two_replicas_take_from_is_free_though_another_is_held() {
    let postgres = Postgres::start().unwrap();
    let stores = two(&postgres).await;
    let (hot, stuck) = hot_and_stuck(&stores[0]).await;
    let holder = hold(&postgres).await;
    let replicas = stores.map(|store| {
        let (hot, stuck) = (hot.clone(), stuck.clone());
        tokio::spawn(async move {
            let both = hot.clone().map(|hot| [hot, stuck.clone()]);
            let on_stuck = async {
                for _ in 0..10 {
                    let answers = join_all(both.iter().map(|both| store.take(both, Now::Store))).await;
                    answers
                        .into_iter()
                        .for_each(|answer| assert_eq!(kind(answer), UnavailableKind::TimedOut));
                }
            };
            let on_hot = join_all((0..32).map(|i| {
                let (store, one) = (&store, std::slice::from_ref(&hot[i % 2]));
                async move {
                    for turn in 0..100 {
                        let answer = store.take(one, Now::Store).await;
                        let granted =
                            answer.unwrap_or_else(|error| panic!("{turn}: {}", crate::chain(&error)));
                        assert!(granted.is_granted());
                        if turn % 10 == 9 {
                            store
                                .refund(one)
                                .await
                                .unwrap_or_else(|error| panic!("{turn}: {}", crate::chain(&error)));
                        }
                    }
                }
            }));
            tokio::join!(on_stuck, on_hot);
            // The bucket that was held is not forgotten with its row held, nor is the other taken for held.
            for (i, both) in both.iter().enumerate() {
                let (both, one) = tokio::join!(
                    store.take(both, Now::Store),
                    store.take(std::slice::from_ref(&hot[i]), Now::Store)
                );
                assert_eq!(kind(both), UnavailableKind::TimedOut);
                assert!(one.unwrap().is_granted());
            }
        })
    });
    for replica in replicas {
        tokio::time::timeout(Duration::from_secs(60), replica).await.expect("hangs").unwrap();
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
}

/// Admissions the same.
#[tokio::test(flavor = "multi_thread")]
async fn admissions_of_two_replicas_find_the_bucket_free_that_nobody_holds() {
    let postgres = Postgres::start().unwrap();
    let stores = two(&postgres).await;
    let (hot, stuck) = hot_and_stuck(&stores[0]).await;
    let holder = hold(&postgres).await;
    let replicas = stores.into_iter().enumerate().map(|(replica, store)| {
        let (hot, stuck) = (hot.clone(), stuck.clone());
        tokio::spawn(async move {
            let admit = async |charges: &[_], name: String| {
                let key = RecordKey::new("tenant", "POST", "/", &format!("{replica} {name}"));
                store.admit(charges, &key, &Fingerprint::of(""), &Terms::default(), Now::Store).await
            };
            let both = hot.clone().map(|hot| [hot, stuck.clone()]);
            let on_stuck = async {
                for turn in 0..10 {
                    let answers = both.iter().enumerate().map(|(i, both)| admit(both, format!("{i} {turn}")));
                    for answer in join_all(answers).await {
                        assert!(answer.is_err(), "{answer:?}");
                    }
                }
            };
            let on_hot = join_all((0..32).map(|i| {
                let (admit, one) = (&admit, std::slice::from_ref(&hot[i % 2]));
                async move {
                    for turn in 0..50 {
                        let verdict = admit(one, format!("hot {i} {turn}")).await;
                        let verdict =
                            verdict.unwrap_or_else(|error| panic!("{turn}: {}", crate::chain(&error)));
                        assert!(matches!(verdict, Verdict::Run(..)), "{verdict:?}");
                    }
                }
            }));
            tokio::join!(on_stuck, on_hot);
        })
    });
    for replica in replicas.collect::<Vec<_>>() {
        tokio::time::timeout(Duration::from_secs(60), replica).await.expect("hangs").unwrap();
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
}

/// What gives back is not undone because its caller has gone. So the statement that had one was never handed on, and all waited
/// behind it for as long as statements wait for locks.
#[tokio::test]
async fn nobody_waits_behind_what_is_given_back_by_those_who_left() {
    let postgres = Postgres::fast().unwrap();
    let store = waits_for_rows(&postgres).await;
    let (stuck, free) = ([charge(INGEST, "stuck", 1.0, "5/hour")], [charge(READ, "free", 1.0, "5/hour")]);
    for one in [&stuck, &stuck, &free] {
        assert!(store.take(one, Now::Store).await.unwrap().is_granted());
    }
    let holder = hold(&postgres).await;
    tokio::select! {
        _ = store.refund(&stuck) => panic!("the row is held"),
        () = lock_waits(&postgres, "1") => {}
    }
    assert!(store.take(&free, Now::Store).await.unwrap().is_granted());
    lock_waits(&postgres, "1").await;
    holder.batch_execute("ROLLBACK").await.unwrap();
    let left = format!("SELECT tokens FROM admit.rate_budgets WHERE scope = '{INGEST}'");
    while !postgres.psql(&left).unwrap().starts_with('4') {
        tokio::task::yield_now().await; // It was given back all the same.
    }
}

/// The same with a large batch, whose two statements were never handed past.
#[tokio::test]
async fn nobody_waits_behind_the_halves_of_a_batch_whose_callers_left() {
    let postgres = Postgres::fast().unwrap();
    let store = waits_for_rows(&postgres).await;
    let names = (0..300).map(|i| format!("{i}")).chain(["stuck".to_owned()]);
    let all: Vec<_> = names.map(|name| [charge(INGEST, &name, 1.0, "5/hour")]).collect();
    let free = [charge(READ, "free", 1.0, "5/hour")];
    for granted in join_all(all.iter().map(|one| store.take(one, Now::Store))).await {
        assert!(granted.unwrap().is_granted());
    }
    let holder = hold(&postgres).await;
    tokio::select! {
        _ = join_all(all.iter().map(|one| store.refund(one))) => panic!("a row is held"),
        () = lock_waits(&postgres, "1") => {}
    }
    assert!(store.take(&free, Now::Store).await.unwrap().is_granted());
    lock_waits(&postgres, "1").await;
    holder.batch_execute("ROLLBACK").await.unwrap();
}

/// A large batch was two statements also where there was one connection: half of it was unavailable while the other half
/// waited for a row.
#[tokio::test]
async fn a_large_batch_needs_no_more_connections_than_there_are() {
    let postgres = Postgres::fast().unwrap();
    let mut config = PostgresConfig::new(postgres.url());
    config.connections = 1;
    config.acquire_timeout = Duration::from_millis(500);
    (config.lock_timeout, config.statement_timeout) = (Duration::from_secs(60), Duration::from_secs(60));
    let store = PostgresStore::connect(config, rules()).await.unwrap();
    let names = ["stuck".to_owned()].into_iter().chain((0..300).map(|i| format!("{i}")));
    let all: Vec<_> = names.map(|name| [charge(INGEST, &name, 1.0, "5/hour")]).collect();
    assert!(store.take(&all[0], Now::Store).await.unwrap().is_granted());
    let holder = hold(&postgres).await;
    let release = async {
        lock_waits(&postgres, "1").await;
        // Told after as long as a connection is waited for.
        let behind = store.take(&[charge(READ, "behind", 1.0, "5/hour")], Now::Store).await;
        assert_eq!(kind(behind), UnavailableKind::TimedOut);
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    let (answers, ()) = tokio::join!(join_all(all.iter().map(|one| store.take(one, Now::Store))), release);
    for answer in answers {
        assert!(answer.unwrap_or_else(|error| panic!("{}", crate::chain(&error))).is_granted());
    }
}

/// A look waited for five rows, and took all locked ones after those for held.
#[tokio::test]
async fn rows_that_a_statement_has_locked_while_it_waits_are_not_held() {
    let postgres = Postgres::fast().unwrap();
    many_and_stuck(&crate::store(&postgres.url()).await).await;
    let holder = hold(&postgres).await;
    let waits = session(&postgres).await;
    let lock = format!("BEGIN; SELECT FROM admit.rate_budgets WHERE scope = '{INGEST}' FOR UPDATE");
    waits.batch_execute(&lock).await.unwrap();
    let waits =
        tokio::spawn(async move { waits.batch_execute("SELECT FROM admit.rate_budgets FOR UPDATE").await });
    lock_waits(&postgres, "1").await;
    let held = "SELECT h.scope FROM (SELECT array_agg(scope) AS scopes, array_agg(bucket_key) AS keys \
                FROM admit.rate_budgets) AS a, \
                unnest(a.scopes, admit.held_buckets(a.scopes, a.keys, 200)) AS h(scope, holder) WHERE h.holder IS NOT NULL";
    assert_eq!(postgres.psql(held).unwrap(), READ.as_str());
    holder.batch_execute("ROLLBACK").await.unwrap();
    waits.await.unwrap().unwrap();
    assert_eq!(postgres.psql(held).unwrap(), "");
}

/// So takes of the sixth and all others were unavailable, because of a row that they do not need.
#[tokio::test]
async fn nobody_else_is_unavailable_where_many_rows_are_locked_by_one_who_waits() {
    let postgres = Postgres::fast().unwrap();
    // The first waits for longer than the look of the second takes, and for less than the second's next statement waits.
    let first = waiting_for(&postgres, Duration::from_millis(3_200)).await;
    let second = waiting_for(&postgres, Duration::from_secs(2)).await;
    let all = many_and_stuck(&first).await;
    let holder = hold(&postgres).await;
    let takes = |store: PostgresStore| {
        let all = all.clone();
        tokio::spawn(async move {
            join_all(all.iter().map(|one| store.take(std::slice::from_ref(one), Now::Store))).await
        })
    };
    let first = takes(first);
    lock_waits(&postgres, "1").await;
    for answers in [takes(second).await.unwrap(), first.await.unwrap()] {
        for (i, answer) in answers.into_iter().enumerate() {
            match i {
                12 => assert_eq!(kind(answer), UnavailableKind::TimedOut),
                _ => assert!(
                    answer.unwrap_or_else(|error| panic!("{i}: {}", crate::chain(&error))).is_granted()
                ),
            }
        }
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
}

/// A bucket that was once held counted as held whenever anybody had its lock at the instant of a look, as another replica's
/// statement has.
#[tokio::test]
async fn who_else_has_the_bucket_is_waited_for() {
    let postgres = Postgres::fast().unwrap();
    let store = waiting_for(&postgres, Duration::from_secs(1)).await;
    let stuck = [charge(INGEST, "stuck", 1.0, "1000/s")];
    assert!(store.take(&stuck, Now::Store).await.unwrap().is_granted());
    let holder = hold(&postgres).await;
    for _ in 0..3 {
        assert_eq!(kind(store.take(&stuck, Now::Store).await), UnavailableKind::TimedOut);
    }
    holder.batch_execute(&format!("ROLLBACK; {}", holding())).await.unwrap();
    let release = async {
        lock_waits(&postgres, "1").await;
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    let both = async { tokio::join!(store.take(&stuck, Now::Store), release) };
    let (answer, ()) =
        tokio::time::timeout(Duration::from_secs(30), both).await.expect("it was not waited for");
    assert!(answer.unwrap_or_else(|error| panic!("{}", crate::chain(&error))).is_granted());
}

/// What was to be given back to a bucket that somebody held was lost at once.
#[tokio::test]
async fn what_is_to_be_given_back_waits_for_who_holds_the_bucket() {
    let postgres = Postgres::fast().unwrap();
    let store = waiting_for(&postgres, Duration::from_millis(300)).await;
    let (stuck, free) = ([charge(INGEST, "stuck", 1.0, "5/hour")], [charge(READ, "free", 1.0, "5000/hour")]);
    assert!(store.take(&stuck, Now::Store).await.unwrap().is_granted());
    let holder = hold(&postgres).await;
    assert_eq!(kind(store.take(&stuck, Now::Store).await), UnavailableKind::TimedOut);
    let release = async {
        for _ in 0..100 {
            assert!(store.take(&free, Now::Store).await.unwrap().is_granted(), "nobody waits behind it");
        }
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    let (given_back, ()) = tokio::join!(store.refund(&stuck), release);
    given_back.unwrap_or_else(|error| panic!("{}", crate::chain(&error)));
    let left = format!("SELECT tokens FROM admit.rate_budgets WHERE scope = '{INGEST}'");
    assert!(postgres.psql(&left).unwrap().starts_with('5'));
}
