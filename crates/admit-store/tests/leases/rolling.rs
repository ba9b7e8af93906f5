//! A lease that is turned off, or on, in one process after the other: what those without it give back fills the bucket in the store
//! beside what the others hold.

use std::time::Duration;

use admit::{Budget, BudgetStore, Charge, Clock, ManualClock, Now};
use admit_store::conformance::property::hold;
use admit_store::conformance::{ALPHA, START, rules};
use admit_store::leases::{Counts, Leased, Leases, Share};
use admit_store::memory::{Limits, MemoryStore};
use proptest::prelude::*;

use super::charge;

const REPLICAS: usize = 4;
const BUDGETS: [&str; 3] = ["100/second", "1000/hour burst 50", "40/minute burst 20"];

#[derive(Clone, Debug)]
enum Op {
    /// The cost in per cent of the burst.
    Take(usize, u32),
    /// By the replica that was granted it, whatever it leases by now.
    Refund(prop::sample::Index),
    /// It takes a policy with the lease, or one without.
    Reload(usize, bool),
    Advance(u64),
    Drain,
}

fn op() -> impl Strategy<Value = Op> {
    let cost = prop_oneof![6 => 1..3_u32, 2 => 1..20_u32, 1 => 1..100_u32];
    prop_oneof![
        20 => (0..REPLICAS, cost).prop_map(|(replica, cost)| Op::Take(replica, cost)),
        8 => any::<prop::sample::Index>().prop_map(Op::Refund),
        1 => (0..REPLICAS, any::<bool>()).prop_map(|(replica, leases)| Op::Reload(replica, leases)),
        4 => (0..20_000_u64).prop_map(Op::Advance),
        2 => (0..2_000_000_u64).prop_map(Op::Advance),
        1 => (0..400_000_000_u64).prop_map(Op::Advance),
        2 => Just(Op::Drain),
    ]
}

async fn case(budget: &'static str, share: Share, operations: Vec<Op>) -> Result<(), String> {
    let clock = ManualClock::at(START);
    let shared = MemoryStore::with(rules(), Limits::default(), clock.clone());
    let leases = |leases: bool| Leases::new(leases.then_some((ALPHA, share)));
    let start = |of| Leased::with(shared.clone(), leases(of % 2 == 0), clock.clone(), Counts::default());
    let mut replicas: Vec<Leased<MemoryStore>> = (0..REPLICAS).map(start).collect();
    let (burst, rate) = {
        let budget: Budget = budget.parse().unwrap();
        (budget.burst().tokens(), budget.rate().tokens_per_second())
    };
    let of = |percent: u32| [charge(ALPHA, "k", burst * f64::from(percent) / 100.0, budget)];
    let mut grants: Vec<(usize, [Charge; 1])> = Vec::new();
    // What was granted and not given back, so far; and at each moment before, with what was held then.
    let (mut granted, mut moments) = (0.0, Vec::new());
    for (i, operation) in operations.into_iter().chain([Op::Drain]).enumerate() {
        let what = format!("operation {i}, {operation:?}");
        let held: f64 = replicas.iter().map(Leased::held).sum();
        moments.push((clock.now(), granted, held));
        match operation {
            Op::Take(by, percent) => {
                if replicas[by].take(&of(percent), Now::Store).await.unwrap().is_granted() {
                    granted += of(percent)[0].cost.tokens();
                    grants.push((by, of(percent)));
                }
            }
            Op::Refund(which) if !grants.is_empty() => {
                let (by, charges) = grants.swap_remove(which.index(grants.len()));
                replicas[by].refund(&charges).await.unwrap();
                granted -= charges[0].cost.tokens();
            }
            Op::Refund(_) => {}
            Op::Reload(which, leased) => {
                replicas[which] = replicas[which].over(shared.clone(), leases(leased));
            }
            Op::Advance(micros) => drop(clock.advance(Duration::from_micros(micros))),
            Op::Drain => {
                for replica in &replicas {
                    while replica.take(&of(1), Now::Store).await.unwrap().is_granted() {
                        granted += of(1)[0].cost.tokens();
                    }
                }
            }
        }
        for (at, before, held) in &moments {
            let bound = burst + rate * clock.now().since(*at).as_secs_f64() + held;
            let since = granted - before;
            if since > bound + burst * 1e-9 {
                return Err(format!("{what}: {since} since {at:?}, of {bound}"));
            }
        }
    }
    Ok(())
}

/// There was no bound stated for it. Over any time no more is granted, and not given back, than `burst + rate·t` and what those
/// that lease held when it began.
#[tokio::test(start_paused = true)]
async fn while_a_lease_is_turned_off_or_on_the_bound_is_wider_by_what_is_held() {
    let operations = prop::collection::vec(op(), 1..=100);
    let shares = prop_oneof![Just(5.0), Just(20.0), Just(50.0)];
    let cases = (prop::sample::select(&BUDGETS[..]), shares, operations);
    hold("rolling", cases, async |(budget, share, operations)| {
        case(budget, Share::percent(share).unwrap(), operations).await
    })
    .await;
}

/// That this comes about, and that it takes something given back.
#[tokio::test]
async fn what_a_process_without_the_lease_gives_back_comes_on_top_of_what_is_held() {
    for gives_back in [false, true] {
        let clock = ManualClock::at(START);
        let shared = MemoryStore::with(rules(), Limits::default(), clock.clone());
        let leases = Leases::new([(ALPHA, "50%".parse().unwrap())]);
        let leased = Leased::with(shared.clone(), leases, clock.clone(), Counts::default());
        let of = |tokens| [charge(ALPHA, "k", tokens, "100/hour")];
        assert!(shared.take(&of(50.0), Now::Store).await.unwrap().is_granted());
        for _ in 0..8 {
            assert!(leased.take(&of(1.0), Now::Store).await.unwrap().is_granted());
        }
        assert_eq!(leased.held(), 7.0, "1, 2, 4 and 8 were asked for");
        clock.advance(Duration::from_secs(36 * 20)); // Of the 65 that are not there, 20 come.
        if gives_back {
            shared.refund(&of(50.0)).await.unwrap();
        }
        assert!(leased.take(&of(7.0), Now::Store).await.unwrap().is_granted());
        let mut granted = 7.0;
        while shared.take(&of(1.0), Now::Store).await.unwrap().is_granted() {
            granted += 1.0;
        }
        assert_eq!(granted, if gives_back { 107.0 } else { 62.0 });
    }
}
