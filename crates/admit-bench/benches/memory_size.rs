//! What ten million buckets in memory take: bytes each, and the time of a take against that among a thousand. Also what
//! was admitted of what was allowed while two threads took from one bucket.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]
#![allow(clippy::print_stdout)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use admit::{Budget, BudgetStore, Charge, Key, Now, Rules, Scope};
use admit_store::memory::{Limits, MemoryStore};
use futures::FutureExt;

const SCOPE: Scope = Scope::from_static("bench");
const MANY: usize = 10_000_000;
const TAKES: usize = 5_000_000;

fn store() -> MemoryStore {
    let limits = Limits { max_buckets: 2 * MANY, ..Limits::default() };
    MemoryStore::with_limits(Rules::new([SCOPE]).unwrap(), limits)
}

fn take(store: &MemoryStore, key: Key, budget: Budget) -> bool {
    let charge = Charge::one(SCOPE, key, budget);
    store.take(std::slice::from_ref(&charge), Now::Store).now_or_never().unwrap().unwrap().is_granted()
}

/// A key is a number spread over its bytes, so that making it takes no time that counts.
fn key(number: u64) -> Key {
    let spread = |salt: u64| (number ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&spread(0x5851_f42d_4c95_7f2d));
    bytes[8..].copy_from_slice(&spread(0x1405_7b7e_f767_814f));
    Key::from_bytes(bytes)
}

fn random(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as f64 / (1_u64 << 53) as f64
}

/// Nanoseconds a take among `keys` buckets; `numbers` are drawn before, so that only takes are timed.
fn nanoseconds(store: &MemoryStore, numbers: &[u32], budget: Budget) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let started = Instant::now();
        for &number in numbers {
            assert!(take(store, key(number.into()), budget));
        }
        best = best.min(started.elapsed().as_nanos() as f64 / numbers.len() as f64);
    }
    best
}

fn drawn(keys: usize, zipf: bool) -> Vec<u32> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    // Zipf with s = 1, by the inverse of its continuous form.
    let draw = |uniform: f64| {
        if zipf { (keys as f64).powf(uniform) as u32 - 1 } else { (uniform * keys as f64) as u32 }
    };
    (0..TAKES).map(|_| draw(random(&mut state)).min(keys as u32 - 1)).collect()
}

/// Bytes of this process in memory, by the kernel.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}

fn main() {
    let budget: Budget = "1000000000/second".parse().unwrap();
    let (few, many) = (store(), store());
    (0..1_000).for_each(|number| assert!(take(&few, key(number), budget)));
    let before = resident();
    let mut slowest = 0;
    for number in 0..MANY as u64 {
        let started = Instant::now();
        assert!(take(&many, key(number), budget));
        slowest = slowest.max(started.elapsed().as_micros());
    }
    assert_eq!(many.bucket_count(), MANY);
    println!("bytes a bucket among {MANY}: {:.1}", (resident() - before) as f64 / MANY as f64);
    println!("slowest take while they were made: {slowest} us");
    for zipf in [true, false] {
        let one = nanoseconds(&few, &drawn(1_000, zipf), budget);
        let other = nanoseconds(&many, &drawn(MANY, zipf), budget);
        let name = if zipf { "Zipf" } else { "uniform" };
        println!("take, {name}: {one:.1} ns among 1,000, {other:.1} ns among {MANY}: {:.2}", other / one);
    }

    let (burst, admitted) = (1_000_000, AtomicUsize::new(0));
    let rules = Rules { retention: admit::Retention::LONGEST, ..Rules::new([SCOPE]).unwrap() };
    let allowed: Budget = format!("1000/hour burst {burst}").parse().unwrap();
    let hot = MemoryStore::with_limits(rules, Limits::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let granted = (0..burst).filter(|_| take(&hot, key(1), allowed)).count();
                admitted.fetch_add(granted, Ordering::Relaxed);
            });
        }
    });
    println!("admitted / allowed, two threads on one bucket: {} / {burst}", admitted.into_inner());
}
