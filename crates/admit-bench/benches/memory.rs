//! One take from the memory store against one keyed check of governor: one key, and 100,000 keys in turn.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::hint::black_box;
use std::num::NonZeroU32;

use admit::{Budget, BudgetStore, Charge, Key, Now, Rules, Scope};
use admit_store::memory::MemoryStore;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures::FutureExt;
use governor::{Quota, RateLimiter};

const SCOPE: Scope = Scope::from_static("bench");

fn takes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("memory take");
    group.throughput(Throughput::Elements(1));
    for keys in [1_u64, 100_000] {
        let names: Vec<Key> = (0..keys).map(|i| Key::hashed(i.to_be_bytes())).collect();

        group.bench_with_input(BenchmarkId::new("admit", keys), &names, |bencher, names| {
            let rules = Rules::new([SCOPE]).unwrap();
            let store = MemoryStore::new(rules);
            let budget: Budget = "1000000000/second".parse().unwrap();
            let mut turn = names.iter().cycle();
            bencher.iter(|| {
                let charge = Charge::one(SCOPE, *turn.next().unwrap(), budget);
                let decision = store.take(std::slice::from_ref(&charge), Now::Store).now_or_never().unwrap();
                assert!(black_box(decision).unwrap().is_granted());
            });
        });

        group.bench_with_input(BenchmarkId::new("governor", keys), &names, |bencher, names| {
            let limiter = RateLimiter::keyed(Quota::per_second(NonZeroU32::new(1_000_000_000).unwrap()));
            let mut turn = names.iter().cycle();
            bencher.iter(|| assert!(black_box(limiter.check_key(turn.next().unwrap())).is_ok()));
        });
    }
    group.finish();
}

criterion_group!(benches, takes);
criterion_main!(benches);
