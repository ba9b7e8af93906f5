//! The laws of the bucket, each as a property over random budgets, costs and clocks. Seeds are fixed: a failure repeats.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::Duration;

use admit::{
    Bucket, Budget, Burst, Charge, Cost, Decision, Key, MAX_CHARGES, Prepared, Rate, Retention, Rules, Scope,
    Scopes, Take, Timestamp, Wait,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

const SCOPES: [Scope; 2] = [Scope::from_static("a"), Scope::from_static("b")];

fn config(cases: u32, seed: u64) -> Config {
    Config {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        max_global_rejects: 100_000,
        failure_persistence: None,
        ..Config::default()
    }
}

fn rules(retention: Retention) -> Rules {
    Rules { scopes: Scopes::new(SCOPES).unwrap(), retention }
}

fn start() -> Timestamp {
    Timestamp::from_unix_micros(1_700_000_000_000_000).unwrap()
}

/// Budgets from a token in hours to gigabytes a second, some with sizes that are no binary fractions.
fn budgets() -> impl Strategy<Value = Budget> {
    let burst = prop_oneof![(1u32..2_000).prop_map(f64::from), 0.01..5.0, 1e3..1e9];
    (burst, 1e-3..3_000.0).prop_map(|(burst, seconds_to_fill): (f64, f64)| {
        Budget::new(Rate::per_second(burst / seconds_to_fill).unwrap(), Burst::new(burst).unwrap())
    })
}

/// A budget, and a cost that fits it.
fn budgets_and_costs() -> impl Strategy<Value = (Budget, Cost)> {
    (budgets(), prop_oneof![Just(1.0), 1e-6..1.0])
        .prop_map(|(budget, share)| (budget, Cost::new(budget.burst().tokens() * share).unwrap()))
}

/// Steps of several clocks that disagree: mostly forward, now and then far, and backward.
fn steps() -> impl Strategy<Value = i64> {
    prop_oneof![
        6 => 0i64..2_000,
        6 => 0i64..2_000_000,
        2 => 0i64..7_200_000_000,
        2 => -2_000_000i64..0,
        1 => Just(0i64),
    ]
}

/// Buckets by (scope, key), and the takes on them.
#[derive(Clone, Default)]
struct Store(BTreeMap<(Scope, Key), Bucket>);

impl Store {
    fn buckets(&self, take: &Take) -> Vec<Option<Bucket>> {
        take.lines().iter().map(|line| self.0.get(&(line.scope.clone(), line.key)).copied()).collect()
    }

    fn take(&mut self, rules: &Rules, charges: &[Charge], now: Timestamp) -> Decision {
        match rules.prepare(charges).unwrap() {
            Prepared::Decided(decision) => decision,
            Prepared::Ask(take) => {
                let (decision, debited) = take.decide(now, &self.buckets(&take));
                for (line, bucket) in take.lines().iter().zip(debited.into_iter().flatten()) {
                    self.0.insert((line.scope.clone(), line.key), bucket);
                }
                decision
            }
        }
    }

    fn delete_idle(&mut self, rules: &Rules, now: Timestamp) {
        self.0.retain(|_, bucket| now.since(bucket.refilled_at) <= rules.retention.duration());
    }
}

proptest! {
    #![proptest_config(config(600, 1))]

    /// Law 1 and 5: whatever the clocks of the callers do, what is granted from one bucket in any window is at most
    /// `burst + rate · t`, where time is the bucket's own, which never moves back.
    #[test]
    fn never_over_in_any_window_however_clocks_step(
        budget in budgets(),
        calls in prop::collection::vec((steps(), 0.0..1.2f64), 1..80),
    ) {
        let (rate, burst) = (budget.rate().tokens_per_second(), budget.burst().tokens());
        let mut now = start();
        let mut bucket: Option<Bucket> = None;
        let mut grants: Vec<(Timestamp, f64)> = Vec::new();
        for (step, share) in calls {
            let moved = (now.unix_micros() + step).max(0);
            now = Timestamp::from_unix_micros(moved).unwrap();
            let cost = Cost::new(burst * share).unwrap();
            let before = bucket.unwrap_or_else(|| Bucket::full(budget, now));
            let Some(after) = before.debit(cost, budget, now) else { continue };
            prop_assert!(after.tokens >= 0.0 && after.refilled_at >= before.refilled_at);
            bucket = Some(after);
            grants.push((after.refilled_at, cost.tokens()));
        }
        for first in 0..grants.len() {
            let mut granted = 0.0;
            for &(at, cost) in &grants[first..] {
                granted += cost;
                let allowed = burst + rate * at.since(grants[first].0).as_secs_f64();
                prop_assert!(granted <= allowed * (1.0 + 1e-9), "{granted} of {allowed}");
            }
        }
    }

    /// Law 2: a take changes every bucket it names, or none, and charges on one bucket add up.
    #[test]
    fn all_or_nothing(
        takes in prop::collection::vec(
            (prop::collection::vec((0usize..2, 0u8..3, 0.0..6.0f64), 1..6), 0i64..500_000),
            1..40,
        ),
    ) {
        let rules = rules(Retention::DEFAULT);
        let budget: Budget = "4/second burst 10".parse().unwrap();
        let (mut store, mut now) = (Store::default(), start());
        for (charges, step) in takes {
            now = now.saturating_add(Duration::from_micros(step.unsigned_abs()));
            let charges: Vec<Charge> = charges
                .into_iter()
                .map(|(scope, key, cost)| Charge {
                    scope: SCOPES[scope].clone(),
                    key: Key::hashed([key]),
                    cost: Cost::new(cost).unwrap(),
                    budget,
                })
                .collect();
            let mut wanted: BTreeMap<(Scope, Key), f64> = BTreeMap::new();
            for charge in &charges {
                *wanted.entry((charge.scope.clone(), charge.key)).or_default() += charge.cost.tokens();
            }
            let before = store.clone();
            let level = |store: &Store, id: &(Scope, Key)| {
                store.0.get(id).map_or(10.0, |bucket| bucket.level(budget, now))
            };
            let granted = store.take(&rules, &charges, now).is_granted();
            prop_assert_eq!(granted, wanted.iter().all(|(id, cost)| level(&before, id) >= *cost));
            if !granted {
                prop_assert_eq!(&store.0, &before.0, "a refusal leaves no trace");
            }
            for (id, cost) in wanted.iter().filter(|_| granted) {
                prop_assert!((level(&before, id) - cost - level(&store, id)).abs() < 1e-9);
            }
        }
    }

    /// Law 6: deleting what was idle for longer than the retention changes no decision and no later state.
    #[test]
    fn the_sweep_cannot_mint(
        budget in budgets(),
        calls in prop::collection::vec((0i64..9_000_000_000, 0.0..1.0f64, any::<bool>()), 1..60),
    ) {
        let rules = rules(Retention::DEFAULT);
        prop_assume!(rules.retention.allows(budget));
        let (mut kept, mut swept, mut now) = (Store::default(), Store::default(), start());
        for (step, share, sweep) in calls {
            now = now.saturating_add(Duration::from_micros(step.unsigned_abs()));
            if sweep {
                swept.delete_idle(&rules, now);
            }
            let cost = Cost::new(budget.burst().tokens() * share).unwrap();
            let charge = Charge { cost, ..Charge::one(SCOPES[0].clone(), Key::of("k"), budget) };
            let decisions = [&mut kept, &mut swept].map(|store| store.take(&rules, std::slice::from_ref(&charge), now));
            prop_assert_eq!(&decisions[0], &decisions[1]);
        }
        for (id, bucket) in &swept.0 {
            prop_assert_eq!(bucket.tokens.to_bits(), kept.0[id].tokens.to_bits());
        }
    }

    /// Law 6: a budget is allowed exactly if an empty bucket is full, to the last bit, after the retention.
    #[test]
    fn a_retention_allows_what_fills_within_it(budget in budgets(), seconds in 1u64..4_000) {
        let retention = Retention::new(Duration::from_secs(seconds)).unwrap();
        let empty = Bucket { tokens: 0.0, refilled_at: start() };
        let full = Bucket::full(budget, start()).tokens;
        let level = empty.level(budget, start().saturating_add(retention.duration()));
        prop_assert_eq!(retention.allows(budget), level.to_bits() == full.to_bits());
    }

    /// A refund capped at once and one capped after the refill come to the same level, so a refund needs no clock.
    #[test]
    fn a_refund_needs_no_clock((budget, cost) in budgets_and_costs(), elapsed in 0i64..8_000_000_000) {
        let later = start().saturating_add(Duration::from_micros(elapsed.unsigned_abs()));
        let bucket = Bucket { tokens: budget.burst().tokens() / 3.0, refilled_at: start() };
        let at_once = bucket.refund(cost, budget).level(budget, later);
        let refilled = Bucket { tokens: bucket.level(budget, later), refilled_at: later };
        let afterwards = refilled.refund(cost, budget).level(budget, later);
        prop_assert!((at_once - afterwards).abs() <= budget.burst().tokens() * 1e-12);
    }
}

proptest! {
    #![proptest_config(config(10_000, 2))]

    /// Law 4, one bucket: the caller that waits as told is granted, the one that comes a microsecond earlier is refused.
    #[test]
    fn a_wait_is_exact_to_the_microsecond(
        (budget, cost) in budgets_and_costs(),
        left in 0.0..1.0f64,
        step in steps(),
    ) {
        let now = start();
        let refilled_at = Timestamp::from_unix_micros(now.unix_micros() - step).unwrap();
        let bucket = Bucket { tokens: cost.tokens() * left, refilled_at };
        let told = bucket.wait(cost, budget, now);
        prop_assert_eq!(bucket.debit(cost, budget, now).is_some(), told.is_none());
        prop_assume!(told.is_some());
        let Some(Wait::After(wait)) = told else { panic!("a cost within the burst fits") };
        prop_assert!(bucket.debit(cost, budget, now.saturating_add(wait)).is_some());
        let tick_before = now.saturating_add(wait - Duration::from_micros(1));
        prop_assert!(bucket.debit(cost, budget, tick_before).is_none());
    }

    /// Law 4, many charges: the longest wait is told; waiting it out grants all, a microsecond less refuses, and so does
    /// the header's whole number of seconds grant.
    #[test]
    fn the_longest_wait_of_a_refusal_is_exact(
        charges in prop::collection::vec((0usize..2, 0u8..4, budgets_and_costs(), 0.0..1.1f64), 1..6),
    ) {
        let rules = rules(Retention::DEFAULT);
        let now = start();
        let mut store = Store::default();
        let mut taken: BTreeMap<(Scope, Key), ()> = BTreeMap::new();
        let mut wanted = Vec::new();
        for (scope, key, (budget, cost), left) in charges {
            let id = (SCOPES[scope].clone(), Key::hashed([key]));
            if taken.insert(id.clone(), ()).is_none() && rules.retention.allows(budget) {
                let tokens = (cost.tokens() * left).min(budget.burst().tokens());
                store.0.insert(id.clone(), Bucket { tokens, refilled_at: now });
                wanted.push(Charge { scope: id.0, key: id.1, cost, budget });
            }
        }
        let decision = store.clone().take(&rules, &wanted, now);
        prop_assume!(!decision.is_granted());
        let refusal = decision.refusal().unwrap();
        let (longest, Wait::After(wait)) = refusal.longest() else { panic!("every cost is within its burst") };
        prop_assert!(refusal.standings[longest].wait == Some(Wait::After(wait)));

        let after = |wait: Duration| store.clone().take(&rules, &wanted, now.saturating_add(wait)).is_granted();
        prop_assert!(after(wait));
        prop_assert!(!after(wait - Duration::from_micros(1)));
        prop_assert!(after(Duration::from_secs(refusal.retry_after_seconds().unwrap())));
    }
}

#[test]
fn a_take_has_room_for_its_bound_of_charges() {
    let budget: Budget = "1/second".parse().unwrap();
    let charges: Vec<_> = (0..MAX_CHARGES)
        .map(|i| Charge::one(SCOPES[i % 2].clone(), Key::hashed(i.to_be_bytes()), budget))
        .collect();
    assert!(Store::default().take(&rules(Retention::DEFAULT), &charges, start()).is_granted());
}
