//! The memory store against the suite, and its bounds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(all(feature = "memory", feature = "conformance"))]

use admit::Rules;
use admit_store::memory::MemoryStore;

async fn fresh(rules: Rules) -> (MemoryStore, ()) {
    (MemoryStore::new(rules), ())
}

admit_store::conformance_tests!(fresh);

mod bounds {
    use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Response, Terms};
    use admit::{
        BudgetStore, Charge, Clock, Cost, Decision, IdempotencyStore, Key, ManualClock, Now, TakeError,
        Timestamp,
    };
    use admit_store::conformance::{ALPHA, BETA, START, rules};
    use admit_store::memory::{Limits, MemoryStore};
    use futures::FutureExt;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    fn store(limits: Limits) -> MemoryStore {
        MemoryStore::with(rules(), limits, ManualClock::at(START))
    }

    fn charge(key: usize, cost: f64, budget: &str) -> Charge {
        let key = Key::hashed(key.to_string());
        Charge { scope: ALPHA, key, cost: Cost::new(cost).unwrap(), budget: budget.parse().unwrap() }
    }

    fn after(seconds: f64) -> Timestamp {
        START.saturating_add(Duration::from_secs_f64(seconds))
    }

    #[tokio::test]
    async fn a_new_key_is_unavailable_while_no_bucket_is_full_again() {
        let store = store(Limits { max_buckets: 100, ..Limits::default() });
        let take = async |key, now| store.take(&[charge(key, 10.0, "10/second")], Now::At(now)).await;
        for key in 0..100 {
            assert!(take(key, START).await.unwrap().is_granted());
        }
        for _ in 0..10 {
            let error = take(100, after(0.999_999)).await.unwrap_err();
            assert!(matches!(error, TakeError::Unavailable(_)), "never unlimited, and never a refusal");
        }
        assert!(!take(7, after(0.5)).await.unwrap().is_granted(), "buckets that are there go on");
        // A refusal needs no room.
        let both = [charge(7, 10.0, "10/second"), charge(100, 1.0, "10/second")];
        assert!(!store.take(&both, Now::At(after(0.5))).await.unwrap().is_granted());

        assert!(take(100, after(1.0)).await.unwrap().is_granted(), "those that are full again make room");
        assert!(store.bucket_count() <= 100);
    }

    #[tokio::test]
    async fn a_bucket_is_not_dropped_while_a_budget_that_took_from_it_would_notice() {
        let store = store(Limits { max_buckets: 1, ..Limits::default() });
        assert!(grants(&store, &[charge(1, 100.0, "100/hour")], START).await);
        assert!(grants(&store, &[charge(1, 10.0, "10/second")], after(1.0)).await);
        // Under the budget of its last take it is full a second later; under the other it is not for an hour.
        let new = [charge(2, 1.0, "10/second")];
        assert!(store.take(&new, Now::At(after(3_600.0))).await.is_err());
        assert!(!grants(&store, &[charge(1, 100.0, "100/hour")], after(3_600.0)).await, "nothing was minted");
        assert!(grants(&store, &new, after(3_602.0)).await);
    }

    /// One take by a slow budget kept every bucket of its scope from being dropped, for as long as the process lived.
    #[tokio::test]
    async fn one_slow_budget_keeps_no_bucket_but_its_own() {
        let store = store(Limits { max_buckets: 100, ..Limits::default() });
        assert!(grants(&store, &[charge(0, 100.0, "100/hour")], START).await);
        for key in 1..10_000 {
            let now = after(key as f64 * 0.1);
            assert!(grants(&store, &[charge(key, 5.0, "10/second")], now).await, "{key}");
        }
        assert!(store.bucket_count() <= 100);
        assert!(!grants(&store, &[charge(0, 1.0, "100/hour")], START).await, "its own is there");
    }

    /// A bucket that was dropped was full under every budget that it knew. A larger burst that comes later is minted, as
    /// it is for a key that was never seen; where the bucket is still there, it is room to refill.
    #[tokio::test]
    async fn a_burst_raised_after_a_drop_is_minted_and_before_it_filled() {
        let store = store(Limits { max_buckets: 2, ..Limits::default() });
        assert!(grants(&store, &[charge(1, 1.0, "10/second")], START).await);
        assert!(grants(&store, &[charge(2, 10.0, "10/second burst 40")], START).await);
        assert!(grants(&store, &[charge(3, 1.0, "10/second")], after(0.5)).await, "drops the first");
        assert!(grants(&store, &[charge(2, 35.0, "10/second burst 80")], after(0.5)).await);
        assert!(!grants(&store, &[charge(2, 1.0, "10/second burst 80")], after(0.5)).await);
        assert!(
            grants(&store, &[charge(1, 80.0, "10/second burst 80")], after(1.0)).await,
            "drops the third"
        );
    }

    #[tokio::test]
    async fn budgets_of_other_scopes_do_not_keep_a_bucket() {
        let store = store(Limits { max_buckets: 2, ..Limits::default() });
        let slow = Charge { scope: BETA, ..charge(2, 1.0, "100/hour") };
        assert!(grants(&store, &[charge(1, 10.0, "10/second"), slow], START).await);
        assert!(grants(&store, &[charge(3, 1.0, "10/second")], after(2.0)).await);
    }

    async fn grants(store: &MemoryStore, charges: &[Charge], now: Timestamp) -> bool {
        store.take(charges, Now::At(now)).await.unwrap().is_granted()
    }

    #[tokio::test]
    async fn many_new_keys_cost_no_more_than_the_bound() {
        let store = store(Limits { max_buckets: 1_000, ..Limits::default() });
        // A client that makes up keys: each bucket is full again before the thousandth after it.
        for key in 0..20_000_usize {
            let now = after(key as f64 / 100.0);
            assert!(grants(&store, &[charge(key, 1.0, "1/second")], now).await, "{key}");
            assert!(store.bucket_count() <= 1_000);
        }
    }

    type Other = Box<dyn FnOnce() + Send>;

    /// A clock whose first reader is held up: meanwhile a second passes, and another thread takes.
    #[derive(Clone)]
    struct HeldUp {
        clock: ManualClock,
        other: Arc<Mutex<Option<Other>>>,
    }

    impl Clock for HeldUp {
        fn now(&self) -> Timestamp {
            let now = self.clock.now();
            let other = self.other.lock().unwrap().take();
            if let Some(other) = other {
                self.clock.advance(Duration::from_secs(1));
                let (done, is_done) = std::sync::mpsc::channel();
                std::thread::spawn(move || {
                    other();
                    let _ = done.send(());
                });
                // Not for ever: it may have to wait for the place that is decided on here.
                let _ = is_done.recv_timeout(Duration::from_millis(100));
            }
            now
        }
    }

    /// A take read the clock before it had its bucket's place. When another dropped the bucket meanwhile, as full at a
    /// later moment, the take minted a full one at the earlier moment, and what came in between was granted twice.
    #[tokio::test]
    async fn a_take_that_was_held_up_after_it_read_the_clock_mints_nothing() {
        let clock = HeldUp { clock: ManualClock::at(START), other: Arc::default() };
        let store = MemoryStore::with(rules(), Limits { max_buckets: 1, ..Limits::default() }, clock.clone());
        let take = |key, cost| {
            let take = store.take(&[charge(key, cost, "10/second")], Now::Store).now_or_never();
            take.unwrap()
        };
        assert!(take(1, 10.0).unwrap().is_granted());
        clock.clock.advance(Duration::from_millis(500));
        let other = store.clone();
        *clock.other.lock().unwrap() = Some(Box::new(move || {
            // Finds the first bucket full, drops it, and leaves room again.
            let _ = other.take(&[charge(2, 1.0, "10/second")], Now::Store).now_or_never();
            let _ = other.delete_idle(Now::At(after(1_000_000.0))).now_or_never();
        }));
        // Refused, as half a second is 5 tokens, or decided when the bucket was full again.
        if let Decision::Granted(grant) = take(1, 10.0).unwrap() {
            assert!(grant.at >= Some(after(1.0)), "{grant:?}");
        }
    }

    fn record(name: usize) -> RecordKey {
        RecordKey::new("tenant", "POST", "/", &name.to_string())
    }

    async fn claim(store: &MemoryStore, name: usize, now: Timestamp) -> Option<Claim> {
        store.claim(&record(name), &Fingerprint::of(""), &Terms::default(), Now::At(now)).await.ok()
    }

    #[tokio::test]
    async fn a_new_record_is_unavailable_while_none_is_over() {
        let store = store(Limits { max_records: 10, ..Limits::default() });
        for name in 0..10 {
            assert!(matches!(claim(&store, name, START).await, Some(Claim::Run(_))));
        }
        assert_eq!(claim(&store, 10, after(1.0)).await, None);
        assert!(matches!(claim(&store, 3, after(1.0)).await, Some(Claim::InFlight { .. })));
        assert!(matches!(claim(&store, 10, after(86_400.0)).await, Some(Claim::Run(_))));
    }

    #[tokio::test]
    async fn a_response_that_does_not_fit_leaves_a_tombstone_until_there_is_room() {
        let store = store(Limits { max_record_bytes: 100, ..Limits::default() });
        let run = async |name, now| {
            let Some(Claim::Run(ticket)) = claim(&store, name, now).await else { panic!("the key was free") };
            let response = Response { status: 200, headers: vec![], body: vec![0; 60] };
            let outcome = Outcome::Response(response);
            store.complete(&ticket, &outcome, &Terms::default(), Now::At(now)).await.unwrap();
            matches!(claim(&store, name, now).await, Some(Claim::Done(kept)) if kept == outcome)
        };
        assert!(run(1, START).await);
        assert!(!run(2, START).await);
        let tombstone = Some(Claim::Done(Outcome::Tombstone { status: 200 }));
        assert_eq!(claim(&store, 2, START).await, tombstone, "told so, and not run again");
        assert!(run(3, after(86_400.0)).await, "the first is over");
        assert!(!run(4, after(86_400.0)).await);
    }
}
