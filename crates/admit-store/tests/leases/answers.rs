//! What is told of a leased bucket.

use std::time::Duration;

use admit::{AdmissionStore, BudgetStore, Charge, Decision, ManualClock, Now, Refusal, Wait};
use admit_store::conformance::{ALPHA, BETA, START, rules};
use admit_store::leases::{Counts, Leased, Leases};
use admit_store::memory::{Limits, MemoryStore};

use super::unsure::{Fate, Unsure};
use super::{both, charge, left};

/// A store, a process in front of it, and the clock of both.
fn leased(share: &str) -> (Unsure, Leased<Unsure>, ManualClock) {
    let clock = ManualClock::at(START);
    let unsure = Unsure::new(MemoryStore::with(rules(), Limits::default(), clock.clone()));
    let leased = Leased::with(unsure.clone(), both(share), clock.clone(), Counts::default());
    (unsure, leased, clock)
}

fn one() -> [Charge; 1] {
    [charge(ALPHA, "k", 1.0, "100/hour")]
}

async fn take(store: &impl BudgetStore, charges: &[Charge]) -> Decision {
    store.take(charges, Now::Store).await.unwrap()
}

#[tokio::test]
async fn slices_follow_the_demand_up_to_the_share() {
    let (unsure, store, clock) = leased("10%");
    for taken in 1..=100 {
        assert_eq!(left(&take(&store, &one()).await), f64::from(100 - taken), "one process knows it all");
        assert!(store.held() <= 10.0);
    }
    assert!(!take(&store, &one()).await.is_granted());
    let asked: Vec<f64> = unsure.takes().iter().map(|charges| charges[0].cost.tokens()).collect();
    assert_eq!(asked[..6], [1.0, 2.0, 4.0, 8.0, 10.0, 10.0], "they double");
    assert_eq!(asked.last(), Some(&1.0), "the last of a bucket is asked for one by one");
    assert!(asked.len() < 20, "{asked:?}");

    // A token in 36 s: what is seldom asked for is not leased.
    for _ in 0..8 {
        clock.advance(Duration::from_secs(36 * 8));
        assert!(take(&store, &one()).await.is_granted());
    }
    assert_eq!(unsure.takes().last().map(|charges| charges[0].cost.tokens()), Some(1.0));
}

#[tokio::test]
async fn what_would_have_run_over_the_edge_lapses() {
    let (_, store, clock) = leased("50%");
    for _ in 0..8 {
        assert!(take(&store, &one()).await.is_granted());
    }
    assert_eq!(store.held(), 7.0, "1, 2, 4 and 8 were asked for");
    clock.advance(Duration::from_secs(3_600)); // The bucket is full, and nobody may have more.
    assert_eq!(store.held(), 0.0);
    assert_eq!(store.counts().lapsed_tokens(), 7.0);
    for _ in 0..100 {
        assert!(take(&store, &one()).await.is_granted());
    }
    assert!(!take(&store, &one()).await.is_granted(), "the burst and no more");
}

#[tokio::test]
async fn a_refusal_is_the_stores_and_its_wait_is_true() {
    let (_, store, clock) = leased("50%");
    let three = [charge(ALPHA, "k", 3.0, "100/hour")];
    for _ in 0..33 {
        assert!(take(&store, &three).await.is_granted());
    }
    let decision = take(&store, &three).await;
    let refusal = decision.refusal().unwrap();
    assert_eq!(refusal.standings[0].level, Some(1.0), "what is held counts");
    assert_eq!(refusal.longest(), (0, Wait::After(Duration::from_secs(72))));
    clock.advance(Duration::from_micros(71_999_999));
    assert!(!take(&store, &three).await.is_granted());
    clock.advance(Duration::from_micros(1));
    assert!(take(&store, &three).await.is_granted());
}

/// What was held was set aside for a take, and the wait told of it was for the rest; what was set aside lapsed meanwhile, so
/// that a caller that waited as told was refused once more.
#[tokio::test]
async fn a_wait_is_true_also_where_some_is_held() {
    let (unsure, store, clock) = leased("50%");
    let cost = |tokens| [charge(ALPHA, "k", tokens, "100/hour")];
    assert!(take(&store, &cost(50.0)).await.is_granted());
    store.refund(&cost(50.0)).await.unwrap();
    assert!(take(&unsure.store, &cost(50.0)).await.is_granted(), "others drain the bucket");
    let refused = take(&store, &cost(60.0)).await;
    let Some((0, Wait::After(wait))) = refused.refusal().map(Refusal::longest) else { panic!("{refused:?}") };
    clock.advance(wait - Duration::from_micros(1));
    assert!(!take(&store, &cost(60.0)).await.is_granted());
    clock.advance(Duration::from_micros(1));
    assert!(take(&store, &cost(60.0)).await.is_granted());
}

/// Tokens that were set aside while the store took its time did not lapse, though the bucket was full by then: half as much
/// again as the burst was granted at one instant.
#[tokio::test]
async fn nothing_is_set_aside_while_the_store_takes_its_time() {
    let clock = ManualClock::at(START);
    let unsure = Unsure::new(MemoryStore::with(rules(), Limits::default(), clock.clone()));
    let leases = || Leases::new([(ALPHA, "50%".parse().unwrap())]);
    let leased = || Leased::with(unsure.clone(), leases(), clock.clone(), Counts::default());
    let (first, second) = (leased(), leased());
    let cost = |tokens| [charge(ALPHA, "k", tokens, "100/second")];
    assert!(take(&first, &cost(50.0)).await.is_granted());
    first.refund(&cost(50.0)).await.unwrap();
    let two = [charge(ALPHA, "k", 49.0, "100/second"), charge(BETA, "k", 1.0, "100/second")];
    unsure.fates([Fate::Stuck]);
    let (slow, all) = tokio::join!(take(&first, &two), async {
        tokio::task::yield_now().await;
        clock.advance(Duration::from_millis(900));
        let all = take(&second, &cost(100.0)).await;
        unsure.open();
        all
    });
    assert!(all.is_granted() && !slow.is_granted(), "{slow:?}");
}

/// A refusal by one budget counted as one of the other's slice: it was asked for again, smaller, and then not at all for
/// longer and longer.
#[tokio::test]
async fn a_refusal_by_another_budget_neither_asks_again_nor_ends_slices() {
    let (unsure, store, _) = leased("50%");
    for _ in 0..7 {
        assert!(take(&store, &one()).await.is_granted());
    }
    let poor = charge(BETA, "k", 1.0, "1/hour");
    assert!(take(&store, std::slice::from_ref(&poor)).await.is_granted());
    unsure.takes();
    for _ in 0..4 {
        assert!(!take(&store, &[one()[0].clone(), poor.clone()]).await.is_granted());
        assert_eq!(unsure.takes().len(), 1, "of a bucket that has plenty");
    }
    assert!(take(&store, &one()).await.is_granted());
    assert_eq!(unsure.takes()[0][0].cost.tokens(), 8.0, "as large as ever");
    assert_eq!(store.counts().refused(), 0);
}

#[tokio::test]
async fn what_was_given_back_is_spent_here_and_never_reaches_the_store() {
    let (unsure, store, _) = leased("50%");
    let all = [charge(ALPHA, "k", 60.0, "100/hour")];
    assert!(take(&store, &all).await.is_granted());
    store.refund(&all).await.unwrap();
    let held = store.held();
    assert!((59.999..=60.0).contains(&held), "{held}: all but a microsecond's refill");
    let in_store = unsure.store.peek(&one(), Now::Store).await.unwrap();
    assert_eq!(left(&in_store), 40.0);
    store.refund(&all).await.unwrap();
    assert!(store.counts().lapsed_tokens() > 59.999 && store.held() <= held, "no more than was spent");
    let more = [charge(ALPHA, "k", 60.001, "100/hour")];
    assert!(!take(&store, &more).await.is_granted(), "it is not added to what the store has");
    assert!(take(&store, &[charge(ALPHA, "k", 59.999, "100/hour")]).await.is_granted());
}

/// A process that gave its slice back to the store filled a bucket that another held a slice of, which could not know: more
/// than the burst was there at once.
#[tokio::test]
async fn no_give_back_fills_a_bucket_that_others_hold_of() {
    let (unsure, first, clock) = leased("50%");
    let second = Leased::with(unsure.clone(), both("50%"), clock.clone(), Counts::default());
    let fifty = [charge(ALPHA, "k", 50.0, "100/hour")];
    assert!(take(&first, &fifty).await.is_granted());
    for _ in 0..8 {
        assert!(take(&second, &one()).await.is_granted());
    }
    first.refund(&fifty).await.unwrap();
    clock.advance(Duration::from_secs(36 * 60));
    let mut granted = 0;
    for store in [&first, &second] {
        while take(store, &one()).await.is_granted() {
            granted += 1;
        }
    }
    assert!(granted <= 100, "{granted} at one instant");
}

#[tokio::test]
async fn all_or_nothing_holds_across_what_is_held_and_what_is_not() {
    let clock = ManualClock::at(START);
    let unsure = Unsure::new(MemoryStore::with(rules(), Limits::default(), clock.clone()));
    let leases = Leases::new([(ALPHA, "50%".parse().unwrap())]);
    let store = Leased::with(unsure.clone(), leases, clock, Counts::default());
    for _ in 0..8 {
        assert!(take(&store, &one()).await.is_granted());
    }
    let held = store.held();
    let mut two = vec![one()[0].clone(), charge(BETA, "k", 3.0, "4/hour")];
    assert_eq!(left(&take(&store, &two).await), 91.0);
    assert_eq!(store.held(), held, "the store is asked for both");

    let refused = take(&store, &two).await;
    let standings = &refused.refusal().unwrap().standings;
    assert_eq!((standings[0].level, standings[0].wait), (Some(91.0 - held), None));
    assert_eq!(standings[1].level, Some(1.0));

    two[1] = charge(BETA, "k", 1.0, "4/hour");
    unsure.fates([Fate::Fails]);
    assert!(store.take(&two, Now::Store).await.is_err());
    assert_eq!(store.held(), held);
    assert_eq!(left(&take(&store, &two).await), 90.0);
}

/// Both are leased, and what is held covers one of them.
#[tokio::test]
async fn what_is_held_is_spent_where_it_covers_all_of_a_take() {
    let (unsure, store, _) = leased("50%");
    let two = [one()[0].clone(), charge(BETA, "k", 1.0, "1000/hour")];
    for taken in 1..=15 {
        assert_eq!(left(&take(&store, &two).await), f64::from(100 - taken));
    }
    assert_eq!(unsure.takes().len(), 4, "1, 2, 4 and 8 of each");
    let held = store.held();
    let most = [one()[0].clone(), charge(BETA, "k", 999.0, "1000/hour")];
    assert!(!take(&store, &most).await.is_granted());
    assert_eq!(store.held(), held, "what was spent of one is held again");
}

#[tokio::test]
async fn a_bucket_whose_budget_changes_is_held_to_the_new_one_at_once() {
    let (_, store, _) = leased("50%");
    for _ in 0..8 {
        assert!(take(&store, &one()).await.is_granted());
    }
    let lowered = [charge(ALPHA, "k", 1.0, "100/hour burst 5")];
    let mut granted = 0;
    while take(&store, &lowered).await.is_granted() {
        granted += 1;
    }
    assert_eq!((granted, store.held(), store.counts().lapsed_tokens()), (5, 0.0, 7.0));
}

#[tokio::test]
async fn the_bound_on_buckets_holds_and_takes_go_on() {
    let (unsure, _, clock) = leased("50%");
    let leases = both("50%").max_buckets(100);
    let store = Leased::with(unsure, leases, clock, Counts::default());
    for key in 0..1_000 {
        let charge = [charge(ALPHA, &key.to_string(), 1.0, "100/hour")];
        for _ in 0..4 {
            assert!(take(&store, &charge).await.is_granted());
        }
    }
    assert!(store.held() <= 300.0 && store.counts().lapsed_tokens() >= 900.0 * 2.0);
}

#[tokio::test]
async fn other_leases_over_the_same_store_keep_what_is_held() {
    let (unsure, store, _) = leased("50%");
    for _ in 0..8 {
        assert!(take(&store, &one()).await.is_granted());
    }
    let same = store.over(unsure.clone(), both("10%"));
    assert_eq!(same.held(), 7.0);
    unsure.takes();
    assert!(take(&same, &one()).await.is_granted() && unsure.takes().is_empty());
    drop(store);
    let none = same.over(unsure.clone(), Leases::default());
    drop(same);
    assert_eq!((none.held(), none.counts().lapsed_tokens()), (0.0, 6.0));
    assert!(take(&none, &one()).await.is_granted());
    none.refund(&one()).await.unwrap();
    assert_eq!(unsure.takes().len(), 1);
}

#[tokio::test]
async fn what_is_held_of_a_deleted_bucket_is_forgotten_where_it_is_told() {
    let (_, store, _) = leased("50%");
    for _ in 0..8 {
        assert!(take(&store, &one()).await.is_granted());
    }
    store.forget(&ALPHA, &one()[0].key);
    assert_eq!((store.held(), store.counts().lapsed_tokens()), (0.0, 7.0));
}

#[tokio::test]
async fn moments_of_the_callers_are_the_clock_of_their_slices() {
    let (_, store, clock) = leased("50%");
    let at = |seconds| Now::At(START.saturating_add(Duration::from_secs(seconds)));
    for _ in 0..8 {
        assert!(store.take(&one(), at(0)).await.unwrap().is_granted());
    }
    clock.set(START.saturating_add(Duration::from_secs(100_000)));
    assert_eq!(store.held(), 7.0);
    let Decision::Granted(grant) = store.take(&one(), at(36)).await.unwrap() else { panic!() };
    assert_eq!((grant.at, grant.left[0]), (at(36).given(), Some(92.0)));
    assert!(store.take(&one(), at(3_600)).await.unwrap().is_granted());
    assert_eq!(store.counts().lapsed_tokens(), 6.0);
}

/// Slices are spent in memory, and the claim is the store's: who takes both for one step gives nothing back of what was debited
/// for a claim that failed.
#[test]
fn only_what_is_not_leased_is_admitted_in_one_step() {
    let leases = Leases::new([(ALPHA, "50%".parse().unwrap())]);
    let store = Leased::new(MemoryStore::new(rules()), leases);
    let [leased, other] = [ALPHA, BETA].map(|scope| charge(scope, "k", 1.0, "10/hour"));
    assert!(store.admits_in_one_step(&[]) && store.admits_in_one_step(std::slice::from_ref(&other)));
    assert!(!store.admits_in_one_step(std::slice::from_ref(&leased)));
    assert!(!store.admits_in_one_step(&[other, leased]));
}
