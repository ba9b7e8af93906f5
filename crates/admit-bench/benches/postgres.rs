//! Takes on PostgreSQL, with fsync and synchronous commit on, against the rate budget document's own single statement
//! on the same server: a hot key and 10,000 keys, with 1 and 64 callers, a connection for each caller.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods)] // A bench reads the clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use admit::{Budget, BudgetStore, Charge, Key, Now, Rules, Scope};
use admit_store::postgres::{PostgresConfig, PostgresStore};
use admit_testbed::Postgres;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use deadpool_postgres::{Manager, Pool};
use tokio::runtime::Runtime;
use tokio_postgres::NoTls;

const SCOPE: Scope = Scope::from_static("bench");
const CALLERS: [usize; 2] = [1, 64];
const KEYS: [u64; 2] = [1, 10_000];

/// One conditional upsert, as the document describes it.
const SINGLE_STATEMENT: &str = "
    INSERT INTO single.rate_budgets AS bucket (scope, bucket_key, tokens, refilled_at)
    VALUES ($1, $2, $5::float8 - $3::float8, clock_timestamp())
    ON CONFLICT (scope, bucket_key) DO UPDATE SET
        tokens = least($5, bucket.tokens
            + greatest(0, extract(epoch FROM excluded.refilled_at - bucket.refilled_at)::float8) * $4::float8) - $3,
        refilled_at = greatest(bucket.refilled_at, excluded.refilled_at)
    WHERE least($5, bucket.tokens
        + greatest(0, extract(epoch FROM excluded.refilled_at - bucket.refilled_at)::float8) * $4) >= $3
    RETURNING tokens";

const SINGLE_TABLE: &str = "
    CREATE SCHEMA single;
    CREATE TABLE single.rate_budgets (
        scope text NOT NULL, bucket_key uuid NOT NULL, tokens float8 NOT NULL CHECK (tokens >= 0),
        refilled_at timestamptz NOT NULL, PRIMARY KEY (scope, bucket_key));
    CREATE INDEX ON single.rate_budgets (refilled_at);";

/// Spreads `total` calls over `callers` tasks and times them all.
async fn spread<F, Fut>(callers: usize, total: u64, call: F) -> Duration
where
    F: Fn(u64) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let next = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let started = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (next, call) = (next.clone(), call.clone());
            tokio::spawn(async move {
                loop {
                    let turn = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if turn >= total {
                        break;
                    }
                    call(turn).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    started.elapsed()
}

fn takes(criterion: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let server = Postgres::with_settings(["max_connections=200"]).unwrap();
    let rate = 1e9;
    let budget: Budget = "1000000000/second".parse().unwrap();

    let store = runtime.block_on(async {
        let rules = Rules::new([SCOPE]).unwrap();
        let mut config = PostgresConfig::new(server.url());
        config.connections = 64;
        PostgresStore::connect(config, rules).await.unwrap()
    });
    let pool = runtime.block_on(async {
        let manager = Manager::new(server.url().parse().unwrap(), NoTls);
        let pool = Pool::builder(manager).max_size(64).build().unwrap();
        pool.get().await.unwrap().batch_execute(SINGLE_TABLE).await.unwrap();
        pool
    });

    let mut group = criterion.benchmark_group("postgres take");
    group.sample_size(10).measurement_time(Duration::from_secs(5)).throughput(Throughput::Elements(1));
    for keys in KEYS {
        let names: Arc<[Key]> = (0..keys).map(|i| Key::hashed(i.to_be_bytes())).collect();
        let name = move |turn: u64| (turn * 7_919 % keys) as usize;
        for callers in CALLERS {
            let case = format!("{keys} keys, {callers} callers");

            group.bench_function(BenchmarkId::new("admit", &case), |bencher| {
                bencher.to_async(&runtime).iter_custom(|total| {
                    let (store, names) = (store.clone(), names.clone());
                    spread(callers, total, move |turn| {
                        let (store, key) = (store.clone(), names[name(turn)]);
                        async move {
                            let charge = Charge::one(SCOPE, key, budget);
                            assert!(store.take(&[charge], Now::Store).await.unwrap().is_granted());
                        }
                    })
                });
            });

            group.bench_function(BenchmarkId::new("single statement", &case), |bencher| {
                bencher.to_async(&runtime).iter_custom(|total| {
                    let (pool, names) = (pool.clone(), names.clone());
                    spread(callers, total, move |turn| {
                        let (pool, key) = (pool.clone(), names[name(turn)]);
                        async move {
                            let client = pool.get().await.unwrap();
                            let take = client.prepare_cached(SINGLE_STATEMENT).await.unwrap();
                            let key = uuid::Uuid::from_bytes(*key.as_bytes());
                            let row =
                                client.query_opt(&take, &[&"bench", &key, &1.0, &rate, &1e9]).await.unwrap();
                            assert!(row.is_some());
                        }
                    })
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, takes);
criterion_main!(benches);
