//! Rows that somebody holds for long: unavailable to those that need them, and to nobody else.

use std::time::Duration;

use admit::idempotency::{Fingerprint, RecordKey, Terms};
use admit::{AdmissionStore, BudgetStore, Key, Now, UnavailableKind, Verdict};
use admit_store::postgres::{PostgresConfig, PostgresStore, tokio_postgres};
use admit_testbed::Postgres;
use futures::future::join_all;

use crate::coalescing::{kind, session};
use crate::{INGEST, READ, charge, lock_waits, rules};

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
    let hold =
        format!("BEGIN; SELECT FROM admit.rate_budgets WHERE bucket_key = '{}' FOR UPDATE", Key::of("stuck"));
    holder.batch_execute(&hold).await.unwrap();
    holder
}

/// The statement that was sent again in place of one that had waited in vain passed over the rows that another replica's statement
/// was just writing too. So takes of a hot bucket were unavailable because of a row that none of them needs; and who needs both
/// had the hot one taken for held, for ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_two_replicas_take_from_is_free_though_another_is_held() {
    let postgres = Postgres::start().unwrap();
    let stores = two(&postgres).await;
    // The hot one comes before and after the one that is held, in the order of the locks.
    let hot = [charge(INGEST, "hot", 1.0, "1000000/s"), charge(READ, "hot", 1.0, "1000000/s")];
    let stuck = charge(INGEST, "stuck", 1.0, "1000000/s");
    for one in hot.iter().chain([&stuck]) {
        assert!(stores[0].take(std::slice::from_ref(one), Now::Store).await.unwrap().is_granted());
    }
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
    let hot = [charge(INGEST, "hot", 1.0, "1000000/s"), charge(READ, "hot", 1.0, "1000000/s")];
    let stuck = charge(INGEST, "stuck", 1.0, "1000000/s");
    for one in hot.iter().chain([&stuck]) {
        assert!(stores[0].take(std::slice::from_ref(one), Now::Store).await.unwrap().is_granted());
    }
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
    let mut config = PostgresConfig::new(postgres.url());
    config.lock_timeout = Duration::from_secs(60);
    config.statement_timeout = Duration::from_secs(60);
    let store = PostgresStore::connect(config, rules()).await.unwrap();
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
