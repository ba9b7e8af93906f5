//! Stores whose callers go away and whose connections are cut.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use admit::{Budget, BudgetStore, Clock, MonotonicClock, Now, TakeError};
use admit_store::conformance::{ALPHA, rules};
use admit_store::leases::{Counts, Leased, Leases, Lessor};
#[cfg(feature = "postgres")]
use admit_store::postgres::{PostgresConfig, PostgresStore};
#[cfg(feature = "postgres")]
use admit_testbed::Postgres;

use super::{charge, left};

/// What one more token leaves, after a caller went away whose 50 of 100 were debited.
async fn left_by_who_has_gone(store: &impl Lessor, for_good: bool) -> f64 {
    let key = format!("{for_good}");
    let cost = |tokens| [charge(ALPHA, &key, tokens, "100/hour")];
    let (fifty, one) = (cost(50.0), cost(1.0));
    {
        let take = async {
            match for_good {
                true => store.take_for_good(&fifty, Now::Store).await,
                false => store.take(&fifty, Now::Store).await,
            }
        };
        let mut take = pin!(take);
        let polled = take.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending), "{polled:?}");
        while left(&store.peek(&one, Now::Store).await.unwrap()) > 51.0 {
            tokio::task::yield_now().await;
        }
    }
    left(&store.take(&one, Now::Store).await.unwrap()).floor()
}

/// What a store gave back of a leased bucket would fill it beside what is held of it.
#[cfg(feature = "postgres")]
#[tokio::test]
async fn postgres_gives_nothing_back_of_what_was_taken_for_good() {
    let postgres = Postgres::fast().unwrap();
    let store = PostgresStore::connect(PostgresConfig::new(postgres.url()), rules()).await.unwrap();
    assert_eq!(left_by_who_has_gone(&store, true).await, 49.0);
    assert_eq!(left_by_who_has_gone(&store, false).await, 99.0, "it gives back all else");
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_gives_nothing_back_of_what_was_taken_for_good() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let store = admit_store::sqlite::SqliteStore::open(&path, rules()).await.unwrap();
    assert_eq!(left_by_who_has_gone(&store, true).await, 49.0);
}

/// Connections are cut for a second while two replicas take as fast as they can: whoever was on one has no answer, and no
/// more is granted than the law allows.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_whose_connections_are_cut_grant_no_more_than_the_law_allows() {
    const BUDGET: &str = "1000/second burst 500";
    let postgres = std::sync::Arc::new(Postgres::fast().unwrap());
    let (clock, counts) = (MonotonicClock::start(), Counts::default());
    let began = clock.now();
    let is_over = move || clock.now().since(began) > Duration::from_secs(1);
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let store = PostgresStore::connect(PostgresConfig::new(postgres.url()), rules()).await.unwrap();
        let leases = Leases::new([(ALPHA, "10%".parse().unwrap())]);
        let store = Leased::with(store, leases, MonotonicClock::start(), counts.clone());
        for _ in 0..8 {
            let store = store.clone();
            callers.spawn(async move {
                let (mut granted, mut unavailable) = (0_u32, 0_u32);
                while !is_over() {
                    match store.take(&[charge(ALPHA, "hot", 1.0, BUDGET)], Now::Store).await {
                        Ok(decision) => granted += u32::from(decision.is_granted()),
                        Err(TakeError::Unavailable(_)) => unavailable += 1,
                        Err(TakeError::Charge(error)) => panic!("{error}"),
                    }
                }
                (granted, unavailable)
            });
        }
    }
    let cutting = tokio::task::spawn_blocking(move || {
        while !is_over() {
            let cut =
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'admit'";
            postgres.psql(cut).unwrap();
        }
        postgres
    });
    let answers = callers.join_all().await;
    let elapsed = clock.now().since(began).as_secs_f64();
    let _postgres = cutting.await.unwrap();
    let granted: f64 = answers.iter().map(|(granted, _)| f64::from(*granted)).sum();
    let unavailable: u32 = answers.iter().map(|(_, unavailable)| unavailable).sum();
    let budget: Budget = BUDGET.parse().unwrap();
    let allowed = budget.burst().tokens() + budget.rate().tokens_per_second() * elapsed;
    assert!(granted > 0.0 && granted <= allowed, "{granted} of {allowed}");
    assert!(unavailable > 0, "whoever was on a connection that was cut hears of it");
}
