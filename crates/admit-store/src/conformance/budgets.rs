//! What one bucket promises.

use std::time::Duration;

use admit::{
    Bucket, Charge, ChargeError, Clock, Cost, Decision, Grant, Key, MAX_CHARGES, Now, Scope, SystemClock,
    TakeError, Timestamp, Wait,
};

use super::{ALPHA, BETA, START, Store, budget, charge, grants, micros, seconds};

/// A key without a bucket has its burst to spend.
pub async fn a_missing_bucket_is_full<S: Store>(store: S) {
    let one = [charge(ALPHA, "k", 1.0, "10/second")];
    for left in (0..10).rev() {
        let decision = store.take(&one, Now::At(START)).await.unwrap();
        assert_eq!(
            decision,
            Decision::Granted(Grant { at: Some(START), left: [Some(f64::from(left))].into() })
        );
    }
    assert!(!grants(&store, &one, START).await);
    let bucket = store.bucket(&ALPHA, &one[0].key).await;
    assert_eq!(bucket, Some(Bucket { tokens: 0.0, refilled_at: START }));
}

/// Tokens come back at the rate, in fractions.
pub async fn a_bucket_refills_at_its_rate<S: Store>(store: S) {
    assert!(grants(&store, &[charge(ALPHA, "k", 10.0, "10/second")], START).await);
    let more = [charge(ALPHA, "k", 2.6, "10/second")];
    assert!(!grants(&store, &more, seconds(0.25)).await);
    let exact = [charge(ALPHA, "k", 2.5, "10/second")];
    assert!(grants(&store, &exact, seconds(0.25)).await);
    let bucket = store.bucket(&ALPHA, &exact[0].key).await;
    assert_eq!(bucket, Some(Bucket { tokens: 0.0, refilled_at: seconds(0.25) }));
}

/// However long a bucket is left alone, it holds its burst and no more.
pub async fn a_refill_stops_at_the_burst<S: Store>(store: S) {
    let all = [charge(ALPHA, "k", 10.0, "10/second")];
    assert!(grants(&store, &all, START).await);
    assert!(grants(&store, &all, seconds(1_000_000.0)).await);
    assert!(!grants(&store, &[charge(ALPHA, "k", 0.1, "10/second")], seconds(1_000_000.0)).await);
}

/// A refusal writes nothing, so that a caller that polls faster than the refill is admitted when the tokens are there.
pub async fn a_refusal_leaves_no_trace<S: Store>(store: S) {
    let one = [charge(ALPHA, "k", 1.0, "1/second")];
    assert!(grants(&store, &one, START).await);
    let before = store.bucket(&ALPHA, &one[0].key).await;
    for tenth in 1..10 {
        assert!(!grants(&store, &one, seconds(f64::from(tenth) / 10.0)).await, "{tenth} tenths");
        assert_eq!(store.bucket(&ALPHA, &one[0].key).await, before);
    }
    assert!(grants(&store, &one, seconds(1.0)).await);
}

/// A negative elapsed time counts as none, and `refilled_at` never moves back.
pub async fn a_clock_that_runs_behind_mints_nothing<S: Store>(store: S) {
    let (six, one) = ([charge(ALPHA, "k", 6.0, "10/second")], [charge(ALPHA, "k", 1.0, "10/second")]);
    assert!(grants(&store, &six, seconds(3_600.0)).await);
    assert!(!grants(&store, &six, START).await);
    assert!(grants(&store, &one, START).await);
    let bucket = store.bucket(&ALPHA, &one[0].key).await;
    assert_eq!(bucket, Some(Bucket { tokens: 3.0, refilled_at: seconds(3_600.0) }));
    let Decision::Refused(refusal) = store.take(&six, Now::At(START)).await.unwrap() else { panic!() };
    // 3 tokens at 10/second, counted from when the bucket was true.
    assert_eq!(refusal.longest(), (0, Wait::After(Duration::from_millis(3_600_300))));
}

/// The budget travels with the take: a lower burst cuts what the bucket holds.
pub async fn a_lowered_burst_applies_at_once<S: Store>(store: S) {
    assert!(grants(&store, &[charge(ALPHA, "k", 1.0, "10/second")], START).await);
    assert!(!grants(&store, &[charge(ALPHA, "k", 5.0, "10/second burst 4")], START).await);
    assert!(grants(&store, &[charge(ALPHA, "k", 4.0, "10/second burst 4")], START).await);
    assert!(!grants(&store, &[charge(ALPHA, "k", 0.5, "10/second")], START).await);
}

/// A higher burst is room to refill, not tokens.
pub async fn a_raised_burst_is_filled_not_given<S: Store>(store: S) {
    assert!(grants(&store, &[charge(ALPHA, "k", 4.0, "10/second burst 4")], START).await);
    let raised = [charge(ALPHA, "k", 100.0, "10/second burst 100")];
    assert!(!grants(&store, &raised, seconds(9.9)).await);
    assert!(grants(&store, &raised, seconds(10.0)).await);
}

/// A cost of zero is granted without a bucket.
pub async fn a_cost_of_zero_asks_no_bucket<S: Store>(store: S) {
    let free = [charge(ALPHA, "k", 0.0, "10/second")];
    for _ in 0..2 {
        let decision = store.take(&free, Now::At(START)).await.unwrap();
        assert_eq!(decision, Decision::Granted(Grant { at: None, left: [None].into() }));
        assert_eq!(store.bucket(&ALPHA, &free[0].key).await, None);
    }
    assert!(grants(&store, &[charge(ALPHA, "k", 10.0, "10/second")], START).await);
    assert!(grants(&store, &free, START).await, "nothing fits an empty bucket too");
    assert!(store.take(&[], Now::At(START)).await.unwrap().is_granted(), "nothing costs nothing");
}

/// A cost above the burst is refused for good, and mints no bucket.
pub async fn a_cost_above_the_burst_never_fits<S: Store>(store: S) {
    let large = [charge(ALPHA, "k", 10.5, "10/second")];
    let Decision::Refused(refusal) = store.take(&large, Now::At(START)).await.unwrap() else { panic!() };
    assert_eq!((refusal.longest(), refusal.retry_after_seconds()), ((0, Wait::Never), None));
    assert_eq!(refusal.at, None);
    assert_eq!(store.bucket(&ALPHA, &large[0].key).await, None);
}

/// What no store evaluates is an error, whatever is asked.
pub async fn mistakes_are_errors_before_any_bucket_is_asked<S: Store>(store: S) {
    let good = charge(ALPHA, "k", 1.0, "10/second");
    let slow = charge(ALPHA, "k", 1.0, "100/day");
    let wrong = [
        vec![good.clone(), Charge { scope: Scope::from_static("gamma"), ..good.clone() }],
        vec![good.clone(), Charge { key: Key::from_bytes([0; 16]), ..good.clone() }],
        vec![Charge { cost: Cost::ZERO, ..slow.clone() }],
        vec![slow],
        vec![good.clone(), charge(ALPHA, "k", 1.0, "9/second")],
        vec![good.clone(); MAX_CHARGES + 1],
    ];
    for charges in wrong {
        let expected: ChargeError = store.rules().prepare(&charges).unwrap_err();
        let same = |error: TakeError| matches!(error, TakeError::Charge(error) if error == expected);
        assert!(same(store.take(&charges, Now::At(START)).await.unwrap_err()), "{expected}");
        assert!(same(store.peek(&charges, Now::At(START)).await.unwrap_err()), "{expected}");
        assert!(same(store.refund(&charges).await.unwrap_err()), "{expected}");
    }
    assert_eq!(store.bucket(&ALPHA, &good.key).await, None);
}

/// The wait is exact: granted then, refused a microsecond earlier.
pub async fn a_caller_that_waits_as_told_is_granted<S: Store>(store: S) {
    let cases = [
        ("10/second", 1.0),
        ("3/second", 1.0),
        ("7/minute", 0.37),
        ("1000/hour burst 10", 9.999),
        ("256KiB/second burst 1MiB", 1_048_575.0),
        ("0.3/second burst 2", 2.0),
    ];
    for (i, (text, cost)) in cases.into_iter().enumerate() {
        let key = format!("caller {i}");
        let all = [Charge {
            cost: Cost::new(budget(text).burst().tokens()).unwrap(),
            ..charge(ALPHA, &key, 0.0, text)
        }];
        assert!(grants(&store, &all, START).await);
        let again = [charge(ALPHA, &key, cost, text)];
        let asked = micros(12_345);
        let Decision::Refused(refusal) = store.take(&again, Now::At(asked)).await.unwrap() else { panic!() };
        let (0, Wait::After(wait)) = refusal.longest() else { panic!("{refusal:?}") };
        let early = asked.saturating_add(wait - Duration::from_micros(1));
        assert!(!grants(&store, &again, early).await, "{text}: a microsecond before {wait:?}");
        assert!(grants(&store, &again, asked.saturating_add(wait)).await, "{text}: after {wait:?}");
    }
}

/// A peek tells what a take would, with the tokens there are, and changes nothing.
pub async fn peek_writes_nothing<S: Store>(store: S) {
    let four = [charge(ALPHA, "k", 4.0, "10/second")];
    let granted = |left: f64, at| Decision::Granted(Grant { at: Some(at), left: [Some(left)].into() });
    assert_eq!(store.peek(&four, Now::At(START)).await.unwrap(), granted(10.0, START));
    assert_eq!(store.bucket(&ALPHA, &four[0].key).await, None);

    assert!(grants(&store, &four, START).await);
    let before = store.bucket(&ALPHA, &four[0].key).await;
    assert_eq!(store.peek(&four, Now::At(seconds(0.1))).await.unwrap(), granted(7.0, seconds(0.1)));
    assert_eq!(store.bucket(&ALPHA, &four[0].key).await, before);

    assert!(grants(&store, &four, START).await);
    let peeked = store.peek(&four, Now::At(START)).await.unwrap();
    assert_eq!(peeked, store.take(&four, Now::At(START)).await.unwrap());
    assert!(!peeked.is_granted());
}

/// What is given back is capped, and never makes a bucket: one that is gone is full.
pub async fn a_refund_stops_at_the_burst_and_makes_no_bucket<S: Store>(store: S) {
    let three = [charge(ALPHA, "k", 3.0, "10/second")];
    store.refund(&three).await.unwrap();
    assert_eq!(store.bucket(&ALPHA, &three[0].key).await, None);

    assert!(grants(&store, &[charge(ALPHA, "k", 4.5, "10/second")], START).await);
    store.refund(&three).await.unwrap();
    let bucket = store.bucket(&ALPHA, &three[0].key).await;
    assert_eq!(bucket, Some(Bucket { tokens: 8.5, refilled_at: START }), "the time stands");
    store.refund(&three).await.unwrap();
    assert_eq!(store.bucket(&ALPHA, &three[0].key).await.unwrap().tokens, 10.0);
    store.refund(&[charge(ALPHA, "k", 99.0, "10/second")]).await.unwrap();
    assert_eq!(store.bucket(&ALPHA, &three[0].key).await.unwrap().tokens, 10.0);
}

/// Idle for exactly the retention is not idle for longer.
pub async fn only_buckets_idle_for_longer_than_the_retention_are_deleted<S: Store>(store: S) {
    let (early, late) = (charge(ALPHA, "early", 1.0, "1/hour"), charge(BETA, "late", 1.0, "1/hour"));
    assert!(grants(&store, std::slice::from_ref(&early), START).await);
    assert!(grants(&store, std::slice::from_ref(&late), micros(1)).await);
    let hour = 3_600_000_000;
    assert_eq!(store.delete_idle(Now::At(Timestamp::MIN)).await.unwrap(), 0);
    assert_eq!(store.delete_idle(Now::At(micros(hour))).await.unwrap(), 0);
    assert_eq!(store.delete_idle(Now::At(micros(hour + 1))).await.unwrap(), 1);
    assert_eq!(store.bucket(&ALPHA, &early.key).await, None);
    assert!(store.bucket(&BETA, &late.key).await.is_some());
    assert_eq!(store.delete_idle(Now::At(micros(hour + 2))).await.unwrap(), 1);
}

/// The slowest budget that is valid decides alike with the bucket and without it, as soon as the sweep may delete it.
pub async fn a_sweep_changes_no_decision<S: Store>(store: S) {
    let (swept, kept) = (charge(ALPHA, "k", 100.0, "100/hour"), charge(BETA, "k", 100.0, "100/hour"));
    let now = micros(3_600_000_001);
    assert!(grants(&store, std::slice::from_ref(&swept), START).await);
    assert_eq!(store.delete_idle(Now::At(now)).await.unwrap(), 1);
    assert!(grants(&store, std::slice::from_ref(&kept), START).await);
    for cost in [33.3, 66.6, 0.2] {
        let decide = async |charge: &Charge| {
            let charge = Charge { cost: Cost::new(cost).unwrap(), ..charge.clone() };
            store.take(&[charge], Now::At(now)).await.unwrap()
        };
        assert_eq!(decide(&swept).await, decide(&kept).await);
    }
    let bits = |bucket: Option<Bucket>| bucket.map(|bucket| (bucket.tokens.to_bits(), bucket.refilled_at));
    assert_eq!(
        bits(store.bucket(&ALPHA, &swept.key).await),
        bits(store.bucket(&BETA, &kept.key).await),
        "the same bucket is left"
    );
}

/// Tokens are IEEE doubles and times are microseconds, at both ends of their ranges.
pub async fn extreme_budgets_and_moments_are_kept_to_the_bit<S: Store>(store: S) {
    let far = Timestamp::MAX.saturating_sub(Duration::from_secs(86_400));
    let cases = [
        ("9_000_000_000_000/second burst 9007199254740992", 9_007_199_254_740_991.0, START),
        ("0.000000001/second burst 0.000000002", 0.000_000_000_7, START),
        ("10/second", 1.0 / 3.0, Timestamp::MIN),
        ("10/second", 0.1 + 0.2, far),
        ("0.1/second", 0.1 - f64::EPSILON, Timestamp::MIN),
    ];
    for (i, (text, cost, now)) in cases.into_iter().enumerate() {
        let charge = charge(ALPHA, &format!("extreme {i}"), cost, text);
        let expected = Bucket::full(charge.budget, now).debit(charge.cost, charge.budget, now).unwrap();
        assert!(grants(&store, std::slice::from_ref(&charge), now).await, "{text}");
        let bucket = store.bucket(&ALPHA, &charge.key).await.unwrap();
        assert_eq!((bucket.tokens.to_bits(), bucket.refilled_at), (expected.tokens.to_bits(), now), "{text}");
    }
}

/// Without a moment of the caller's, the store's clock decides, and it shows the time of day.
pub async fn the_stores_own_clock_tells_the_time<S: Store>(store: S) {
    let all = [charge(ALPHA, "k", 3.0, "3/hour")];
    let Decision::Granted(grant) = store.take(&all, Now::Store).await.unwrap() else { panic!() };
    let at = grant.at.unwrap();
    let apart = SystemClock.now().since(at).max(at.since(SystemClock.now()));
    assert!(apart < Duration::from_secs(300), "{at} is not the time of day");
    assert_eq!(store.bucket(&ALPHA, &all[0].key).await.unwrap().refilled_at, at);
    assert!(!store.take(&all, Now::Store).await.unwrap().is_granted());
    assert_eq!(store.delete_idle(Now::Store).await.unwrap(), 0);
}
