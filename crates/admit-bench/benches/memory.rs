//! One take from the memory store against one keyed check of governor (its DashMap, its default clock): one key, and
//! 100,000 keys of which few are asked for often (Zipf, s = 1), in one thread and in two at once.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use admit::{Budget, BudgetStore, Charge, Key, Now, Rules, Scope};
use admit_store::memory::MemoryStore;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use futures::FutureExt;
use governor::{Quota, RateLimiter};

const SCOPE: Scope = Scope::from_static("bench");

/// As many as are drawn before they come again.
const DRAWN: usize = 1 << 20;

/// Keys in the order in which they are asked for.
fn drawn(keys: usize) -> Vec<Key> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=keys)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let wanted = (random >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        sums.partition_point(|&sum| sum <= wanted)
    };
    let names: Vec<Key> = (0..keys).map(|rank| Key::hashed(rank.to_be_bytes())).collect();
    (0..DRAWN).map(|_| names[draw().min(keys - 1)]).collect()
}

/// The time in which each of the threads goes through `takes` keys, each from a place of its own.
fn timed(threads: usize, takes: u64, keys: &[Key], take: impl Fn(Key) + Sync) -> Duration {
    let all_there = Barrier::new(threads);
    let run = |thread: usize| {
        let (start, mut left) = (thread * keys.len() / threads, takes);
        all_there.wait();
        let started = Instant::now();
        let mut turn = &keys[start..];
        while left > 0 {
            let now = turn.len().min(usize::try_from(left).unwrap());
            turn[..now].iter().for_each(|key| take(*key));
            left -= now as u64;
            turn = keys;
        }
        started.elapsed()
    };
    let run = &run;
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let first = run(0);
        others.into_iter().map(|other| other.join().unwrap()).fold(first, Duration::max)
    })
}

fn takes(criterion: &mut Criterion) {
    for threads in [1, 2] {
        let mut group = criterion.benchmark_group(format!("memory take, threads: {threads}"));
        group.measurement_time(Duration::from_secs(4)).warm_up_time(Duration::from_secs(1));
        for keys in [1, 100_000] {
            let drawn = drawn(keys);

            let store = MemoryStore::new(Rules::new([SCOPE]).unwrap());
            let budget: Budget = "1000000000/second".parse().unwrap();
            let take = |key| {
                let charge = Charge::one(SCOPE, key, budget);
                let decision = store.take(std::slice::from_ref(&charge), Now::Store).now_or_never().unwrap();
                assert!(black_box(decision).unwrap().is_granted());
            };
            group.bench_function(BenchmarkId::new("admit", keys), |bencher| {
                bencher.iter_custom(|takes| timed(threads, takes, &drawn, take));
            });

            let limiter = RateLimiter::keyed(Quota::per_second(NonZeroU32::new(1_000_000_000).unwrap()));
            let check = |key| assert!(black_box(limiter.check_key(&key)).is_ok());
            group.bench_function(BenchmarkId::new("governor", keys), |bencher| {
                bencher.iter_custom(|takes| timed(threads, takes, &drawn, check));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, takes);
criterion_main!(benches);
