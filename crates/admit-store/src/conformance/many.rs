//! What a store promises over many buckets and many callers.

use std::time::Duration;

use admit::{Bucket, Charge, Decision, Grant, Key, MAX_CHARGES, Now, Wait};
use tokio::task::JoinSet;

use super::{ALPHA, BETA, START, Store, charge, grants, micros, seconds};

/// As many callers at one instant as the rate budget's own proof has.
const CALLERS: usize = 100;

/// A charge that does not fit keeps the others from being debited, or minted.
pub async fn all_charges_are_debited_or_none<S: Store>(store: S) {
    let (small, large) = (charge(ALPHA, "k", 3.0, "4/second"), charge(BETA, "k", 3.0, "10/second"));
    let both = [small.clone(), large.clone()];
    let decision = store.take(&both, Now::At(START)).await.unwrap();
    assert_eq!(decision, Decision::Granted(Grant { at: Some(START), left: [Some(1.0), Some(7.0)].into() }));

    let Decision::Refused(refusal) = store.take(&both, Now::At(START)).await.unwrap() else { panic!() };
    assert_eq!(refusal.refused().collect::<Vec<_>>(), [(0, Wait::After(Duration::from_millis(500)))]);
    assert_eq!([refusal.standings[0].level, refusal.standings[1].level], [Some(1.0), Some(7.0)]);
    assert_eq!(store.bucket(&BETA, &large.key).await.unwrap().tokens, 7.0);

    let fresh = charge(BETA, "no bucket yet", 1.0, "10/second");
    assert!(!grants(&store, &[fresh.clone(), small], START).await);
    assert_eq!(store.bucket(&BETA, &fresh.key).await, None, "a refusal mints nothing");
}

/// Two charges on one bucket are one larger charge, wherever they stand.
pub async fn charges_on_one_bucket_add_up<S: Store>(store: S) {
    let take = [
        charge(ALPHA, "k", 4.0, "10/second"),
        charge(BETA, "k", 1.0, "10/second"),
        charge(ALPHA, "k", 5.0, "10/second"),
    ];
    let Decision::Granted(grant) = store.take(&take, Now::At(START)).await.unwrap() else { panic!() };
    assert_eq!(grant.left, [Some(1.0), Some(9.0), Some(1.0)]);
    assert!(!grants(&store, &take, START).await, "each alone would fit one more time after 0.3 s, not both");
    assert_eq!(store.bucket(&ALPHA, &take[0].key).await.unwrap().tokens, 1.0);
}

/// After the longest wait all charges fit; a microsecond before, one does not.
pub async fn the_longest_of_several_waits_is_true<S: Store>(store: S) {
    let take = [
        charge(ALPHA, "k", 2.0, "3/second"),
        charge(BETA, "k", 7.0, "11/minute"),
        charge(BETA, "another", 0.0, "1/second"),
    ];
    assert!(grants(&store, &take, START).await);
    let Decision::Refused(refusal) = store.take(&take, Now::At(micros(7))).await.unwrap() else { panic!() };
    let (longest, Wait::After(wait)) = refusal.longest() else { panic!("{refusal:?}") };
    assert_eq!((longest, refusal.refused().count()), (1, 2));
    assert!(!grants(&store, &take, micros(6).saturating_add(wait)).await);
    assert!(grants(&store, &take, micros(7).saturating_add(wait)).await);
}

/// The most charges that a take may have, each on a bucket of its own.
pub async fn a_take_of_the_most_charges_is_one_decision<S: Store>(store: S) {
    let take: Vec<Charge> = (0..MAX_CHARGES)
        .map(|i| charge(if i % 2 == 0 { ALPHA } else { BETA }, &format!("key {i}"), 1.0, "1/second"))
        .collect();
    assert!(grants(&store, &take, START).await);
    assert!(!grants(&store, &take, seconds(0.5)).await);
    for charge in &take {
        let bucket = store.bucket(&charge.scope, &charge.key).await;
        assert_eq!(bucket, Some(Bucket { tokens: 0.0, refilled_at: START }));
    }
}

/// A refund undoes a take, charge by charge, and adds up like one.
pub async fn a_refund_of_several_charges_gives_each_back<S: Store>(store: S) {
    let take = [
        charge(BETA, "k", 2.5, "10/second"),
        charge(ALPHA, "k", 1.0, "5/second"),
        charge(BETA, "k", 3.0, "10/second"),
    ];
    assert!(grants(&store, &take, START).await);
    store.refund(&take).await.unwrap();
    assert_eq!(store.bucket(&BETA, &take[0].key).await.unwrap().tokens, 10.0);
    assert_eq!(store.bucket(&ALPHA, &take[1].key).await.unwrap().tokens, 5.0);
}

/// A hundred takes at one instant on a bucket of 37 tokens: 37 are granted.
pub async fn concurrent_takes_grant_exactly_what_is_there<S: Store>(store: S) {
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let store = store.clone();
        callers.spawn(async move { grants(&store, &[charge(ALPHA, "hot", 1.0, "37/second")], START).await });
    }
    let granted = callers.join_all().await.into_iter().filter(|granted| *granted).count();
    assert_eq!(granted, 37);
    assert_eq!(store.bucket(&ALPHA, &Key::hashed("hot")).await.unwrap().tokens, 0.0);
}

/// Takes of two buckets whose charges stand in opposite order wait for nobody in a circle, and stay exact.
pub async fn takes_in_opposite_order_do_not_deadlock<S: Store>(store: S) {
    let mut callers = JoinSet::new();
    for i in 0..CALLERS {
        let store = store.clone();
        callers.spawn(async move {
            let mut take = [charge(ALPHA, "x", 1.0, "41/second"), charge(BETA, "y", 1.0, "60/second")];
            if i % 2 == 0 {
                take.reverse();
            }
            grants(&store, &take, START).await
        });
    }
    let granted = callers.join_all().await.into_iter().filter(|granted| *granted).count();
    assert_eq!(granted, 41);
    assert_eq!(store.bucket(&ALPHA, &Key::hashed("x")).await.unwrap().tokens, 0.0);
    assert_eq!(store.bucket(&BETA, &Key::hashed("y")).await.unwrap().tokens, 19.0);
}

/// Takes that are given back, and sweeps, among concurrent takes: what is granted and kept never exceeds the burst.
pub async fn concurrent_takes_with_refunds_and_sweeps_are_never_over<S: Store>(store: S) {
    let mut callers = JoinSet::new();
    for i in 0..CALLERS {
        let store = store.clone();
        callers.spawn(async move {
            let one = [charge(ALPHA, "hot", 1.0, "30/hour")];
            let granted = grants(&store, &one, START).await;
            if granted && i % 3 == 0 {
                store.refund(&one).await.unwrap();
                return false;
            }
            if i % 10 == 0 {
                store.delete_idle(Now::At(seconds(3_600.0))).await.unwrap();
            }
            granted
        });
    }
    let kept = callers.join_all().await.into_iter().filter(|kept| *kept).count();
    let left = store.bucket(&ALPHA, &Key::hashed("hot")).await.unwrap().tokens;
    assert_eq!(kept as f64 + left, 30.0);
}

/// Each of many keys has a bucket of its own in each scope.
pub async fn keys_do_not_meet<S: Store>(store: S) {
    const KEYS: usize = 1_000;
    let mut callers = JoinSet::new();
    for caller in 0..10 {
        let store = store.clone();
        callers.spawn(async move {
            for i in (caller..KEYS).step_by(10) {
                let key = format!("key {i}");
                let both = [charge(ALPHA, &key, 1.0, "2/second"), charge(BETA, &key, 2.0, "2/second")];
                assert!(grants(&store, &both, START).await);
                assert!(!grants(&store, &both, START).await);
            }
        });
    }
    callers.join_all().await;
    for i in [0, KEYS / 2, KEYS - 1] {
        let key = Key::hashed(format!("key {i}"));
        assert_eq!(store.bucket(&ALPHA, &key).await.unwrap().tokens, 1.0);
        assert_eq!(store.bucket(&BETA, &key).await.unwrap().tokens, 0.0);
    }
    assert_eq!(store.delete_idle(Now::At(seconds(3_601.0))).await.unwrap(), 2 * KEYS as u64);
}
