//! Many callers of one process, some of whom go away.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use admit::{BudgetStore, Charge, Decision, ManualClock, Now, TakeError};
use admit_store::conformance::{ALPHA, BETA, START, rules};
use admit_store::leases::{Counts, Leased, Leases};
use admit_store::memory::{Limits, MemoryStore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::unsure::{Fate, Unsure};
use super::{both, charge};

fn one() -> [Charge; 1] {
    [charge(ALPHA, "k", 1.0, "1000/hour")]
}

/// A bucket that was asked for often enough for the next ask to be for a slice of eight.
async fn warm() -> (Unsure, Leased<Unsure>) {
    warm_by(&ManualClock::at(START)).await
}

async fn warm_by(clock: &ManualClock) -> (Unsure, Leased<Unsure>) {
    let unsure = Unsure::new(MemoryStore::with(rules(), Limits::default(), clock.clone()));
    let store = Leased::with(unsure.clone(), both("50%"), clock.clone(), Counts::default());
    for _ in 0..7 {
        assert!(store.take(&one(), Now::Store).await.unwrap().is_granted());
    }
    assert_eq!(unsure.takes().len(), 3);
    (unsure, store)
}

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

/// Lets a future run until it waits, and has it go away: when what it waits for is under way.
async fn leave(future: impl Future) {
    let mut future = pin!(future);
    poll(future.as_mut());
    settle().await;
}

/// Lets a future run until it waits.
fn poll(future: Pin<&mut impl Future>) {
    let waker = Waker::from(Arc::new(Nobody));
    assert!(matches!(future.poll(&mut Context::from_waker(&waker)), Poll::Pending));
}

async fn settle() {
    for _ in 0..16 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn one_slice_is_on_its_way_for_all_who_wait() {
    let (unsure, store) = warm().await;
    unsure.fates([Fate::Waits]);
    let mut callers = JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        callers.spawn(async move { store.take(&one(), Now::Store).await.unwrap().is_granted() });
    }
    settle().await;
    assert_eq!(unsure.takes().len(), 1, "the others wait");
    unsure.open();
    assert!(callers.join_all().await.into_iter().all(|granted| granted));
    assert_eq!(unsure.takes().len(), 0, "it was enough for all");
}

#[tokio::test]
async fn a_caller_that_leaves_strands_neither_the_others_nor_the_slice() {
    let (unsure, store) = warm().await;
    unsure.fates([Fate::Waits]);
    leave(store.take(&one(), Now::Store)).await;
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.take(&one(), Now::Store).await }
    });
    settle().await;
    unsure.open();
    assert!(waiting.await.unwrap().unwrap().is_granted());
    assert_eq!(
        (unsure.takes().len(), store.held(), unsure.lost()),
        (1, 7.0, 0.0),
        "none of the eight is lost"
    );
}

/// It was asked for all the same.
#[tokio::test]
async fn what_nobody_waits_for_any_more_is_not_asked_for() {
    let (unsure, store) = warm().await;
    let one = one();
    poll(Box::pin(store.take(&one, Now::Store)).as_mut());
    settle().await;
    assert_eq!((unsure.asked(), store.counts().unanswered()), (0, 0));

    let mut asking = Box::pin(store.take(&one, Now::Store));
    let mut waiting = Box::pin(store.take(&one, Now::Store));
    poll(asking.as_mut());
    poll(waiting.as_mut());
    drop(asking);
    assert!(waiting.await.unwrap().is_granted(), "whoever waited for its slice asks instead");
    assert_eq!((unsure.asked(), store.held()), (1, 7.0));
}

#[tokio::test]
async fn a_caller_that_leaves_while_it_waits_changes_nothing() {
    let (unsure, store) = warm().await;
    unsure.fates([Fate::Waits]);
    let asking = tokio::spawn({
        let store = store.clone();
        async move { store.take(&one(), Now::Store).await }
    });
    settle().await;
    leave(store.take(&one(), Now::Store)).await;
    unsure.open();
    assert!(asking.await.unwrap().unwrap().is_granted());
    assert_eq!(store.held(), 7.0);
}

/// A take for the cost alone ran in its caller's future. The store gave it back when that was dropped, and so filled the bucket
/// beside what another process held of it: more than the burst was there at once.
#[tokio::test]
async fn a_store_gives_nothing_back_of_a_leased_bucket_whose_caller_has_gone() {
    let clock = ManualClock::at(START);
    let unsure = Unsure::new(MemoryStore::with(rules(), Limits::default(), clock.clone()));
    let leased = || Leased::with(unsure.clone(), both("50%"), clock.clone(), Counts::default());
    let (first, second) = (leased(), leased());
    let cost = |tokens| [charge(ALPHA, "k", tokens, "100/hour")];
    unsure.fates([Fate::Waits]);
    let asking = tokio::spawn({
        let first = first.clone();
        async move { first.take(&cost(50.0), Now::Store).await }
    });
    settle().await;
    for _ in 0..8 {
        assert!(second.take(&cost(1.0), Now::Store).await.unwrap().is_granted());
    }
    assert_eq!(second.held(), 7.0, "1, 2, 4 and 8 were asked for");
    asking.abort();
    settle().await;
    unsure.open();
    settle().await;
    clock.advance(Duration::from_secs(20 * 36)); // Another 20 there, so that what was left is full but for what is held.
    let mut granted = 0;
    for store in [&first, &second] {
        while store.take(&cost(1.0), Now::Store).await.unwrap().is_granted() {
            granted += 1;
        }
    }
    assert!(granted <= 100, "{granted} at one instant");
    assert_eq!(unsure.lost(), 0.0, "and the process that it was granted to has it");
}

#[tokio::test]
async fn what_is_not_leased_is_given_back_to_the_store_for_a_caller_that_has_gone() {
    let clock = ManualClock::at(START);
    let unsure = Unsure::new(MemoryStore::with(rules(), Limits::default(), clock.clone()));
    let leases = Leases::new([(ALPHA, "50%".parse().unwrap())]);
    let store = Leased::with(unsure.clone(), leases, clock, Counts::default());
    unsure.fates([Fate::Waits]);
    let two = [one()[0].clone(), charge(BETA, "k", 3.0, "4/hour")];
    leave(store.take(&two, Now::Store)).await;
    unsure.open();
    settle().await;
    let in_store = unsure.store.peek(&two, Now::Store).await.unwrap();
    let Decision::Granted(grant) = in_store else { panic!("{in_store:?}") };
    assert_eq!(grant.left, [Some(999.0), Some(4.0)]);
}

/// A runtime that runs only when it is told to.
struct Elsewhere(tokio::runtime::Runtime);

impl Elsewhere {
    fn new() -> Self {
        Self(tokio::runtime::Builder::new_current_thread().build().unwrap())
    }

    /// Asks for a slice, for a caller that leaves.
    fn ask(self, store: &Leased<Unsure>) -> Self {
        let store = store.clone();
        self.run(async move { leave(store.take(&one(), Now::Store)).await })
    }

    fn run(self, first: impl Future<Output = ()> + Send + 'static) -> Self {
        let running = std::thread::spawn(move || {
            self.0.block_on(first);
            self.0.block_on(settle());
            self
        });
        running.join().unwrap()
    }
}

/// The task that was to see to a slice was one of a runtime that nobody ran any more: callers in other runtimes waited for it
/// for ever.
#[tokio::test(start_paused = true)]
async fn a_slice_that_another_runtime_does_not_see_to_is_not_waited_for_long() {
    let clock = ManualClock::at(START);
    let (unsure, store) = warm_by(&clock).await;
    unsure.fates([Fate::Waits]);
    let stalled = Elsewhere::new().ask(&store);
    assert_eq!(unsure.takes().len(), 1, "a slice is on its way");
    let one = one();
    let mut first = pin!(store.take(&one, Now::Store));
    assert!(timeout(Duration::from_millis(499), &mut first).await.is_err(), "it may yet come");
    clock.advance(Duration::from_millis(500));
    assert!(timeout(Duration::from_millis(2), first).await.unwrap().unwrap().is_granted());
    let next = timeout(Duration::from_millis(1), store.take(&one, Now::Store)).await;
    assert!(next.expect("a second one waited").unwrap().is_granted());
    stalled.0.shutdown_background();
}

/// A caller that had waited for slices before, and had a millisecond left, said of a new one that it was late: from then on
/// nobody waited for it.
#[tokio::test(start_paused = true)]
async fn a_slice_is_late_by_its_own_age() {
    let clock = ManualClock::at(START);
    let (unsure, store) = warm_by(&clock).await;
    unsure.fates([Fate::Waits]);
    let elsewhere = Elsewhere::new().ask(&store);
    let one = one();
    let mut first = pin!(store.take(&one, Now::Store));
    assert!(timeout(Duration::from_millis(499), &mut first).await.is_err());
    clock.advance(Duration::from_millis(499));
    unsure.open();
    let elsewhere = elsewhere.run(settle());
    for _ in 0..8 {
        assert!(store.take(&one, Now::Store).await.unwrap().is_granted());
    }
    assert_eq!(unsure.takes().len(), 1, "others were granted all of the slice");
    unsure.fates([Fate::Waits]);
    let elsewhere = elsewhere.ask(&store);
    assert!(timeout(Duration::ZERO, &mut first).await.is_err(), "it waits again");
    clock.advance(Duration::from_millis(1));
    assert!(
        timeout(Duration::from_millis(2), first).await.expect("it had a millisecond").unwrap().is_granted()
    );
    let mut next = pin!(store.take(&one, Now::Store));
    assert!(timeout(Duration::from_millis(400), &mut next).await.is_err(), "it was not waited for");
    assert_eq!(unsure.takes().len(), 2, "of the slice, and of the first caller");
    unsure.open();
    elsewhere.run(settle()).0.shutdown_background();
    assert!(next.await.unwrap().is_granted());
    assert_eq!(unsure.takes().len(), 0);
}

/// A server has a runtime for each processor. Those who came while another runtime's slice was on its way asked the store each for
/// itself, durably, and the next slice was no larger for them.
#[test]
fn one_slice_is_on_its_way_for_the_callers_of_all_runtimes() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap() // Time goes on only where there is nothing to do.
    };
    let run =
        |task: Pin<Box<dyn Future<Output = ()> + Send>>| std::thread::spawn(move || runtime().block_on(task));
    let (unsure, store) = runtime().block_on(warm());
    unsure.fates([Fate::Waits]);
    let take = |store: Leased<Unsure>| async move {
        assert!(store.take(&one(), Now::Store).await.unwrap().is_granted());
    };
    let asks = run(Box::pin(take(store.clone())));
    while unsure.asked() < 1 {
        std::thread::yield_now();
    }
    let (began, waiting) = std::sync::mpsc::channel();
    let waits = run(Box::pin(async move {
        let mut callers = JoinSet::new();
        (0..7).for_each(|_| drop(callers.spawn(take(store.clone()))));
        settle().await;
        began.send(()).unwrap();
        while !callers.is_empty() {
            if let Some(caller) = callers.try_join_next() {
                caller.unwrap();
            }
            tokio::task::yield_now().await;
        }
    }));
    waiting.recv().unwrap();
    assert_eq!(unsure.asked(), 1, "the others wait");
    unsure.open();
    asks.join().unwrap();
    waits.join().unwrap();
    assert_eq!(unsure.asked(), 1, "it was enough for all");
}

/// A slice that was on its way while the bucket was deleted came on top of the full one.
#[tokio::test]
async fn a_slice_that_arrives_after_its_bucket_was_forgotten_lapses() {
    let (unsure, store) = warm().await;
    unsure.fates([Fate::Waits]);
    let asking = tokio::spawn({
        let store = store.clone();
        async move { store.take(&one(), Now::Store).await }
    });
    settle().await;
    store.forget(&ALPHA, &one()[0].key);
    assert!(store.take(&one(), Now::Store).await.unwrap().is_granted());
    unsure.open();
    assert!(asking.await.unwrap().unwrap().is_granted(), "it was debited");
    assert_eq!((store.held(), store.counts().lapsed_tokens()), (0.0, 7.0));
}

#[tokio::test]
async fn a_slice_without_an_answer_is_an_error_to_one_caller_and_the_others_ask_for_themselves() {
    let (unsure, store) = warm().await;
    unsure.fates([Fate::AnswerIsLost]);
    let mut callers = JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        callers.spawn(async move { store.take(&one(), Now::Store).await });
    }
    let answers = callers.join_all().await;
    let failed = answers.iter().filter(|answer| matches!(answer, Err(TakeError::Unavailable(_)))).count();
    let granted = answers.iter().filter(|answer| answer.as_ref().is_ok_and(Decision::is_granted)).count();
    assert_eq!(
        (failed, granted),
        (1, 7),
        "unavailable is not refused, and nobody is granted what is not debited"
    );
    assert_eq!((store.counts().unanswered(), unsure.lost()), (1, 8.0));
}

/// Two takes over two buckets in opposite order never wait for each other in a circle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_of_two_leased_buckets_do_not_wait_in_a_circle() {
    let store = Leased::new(MemoryStore::new(rules()), both("5%"));
    let mut callers = JoinSet::new();
    for i in 0..100 {
        let store = store.clone();
        callers.spawn(async move {
            let mut both = [charge(ALPHA, "x", 1.0, "1000/hour"), charge(BETA, "y", 1.0, "2000/hour")];
            if i % 2 == 0 {
                both.reverse();
            }
            let mut granted = 0;
            for _ in 0..20 {
                granted += usize::from(store.take(&both, Now::Store).await.unwrap().is_granted());
            }
            granted
        });
    }
    let granted: usize = callers.join_all().await.into_iter().sum();
    assert!((990..=1_005).contains(&granted), "{granted}"); // A token in 3.6 s comes on top.
}

/// Without a runtime there is nothing to leave a slice to, and all else goes on.
#[test]
fn a_caller_without_a_runtime_is_served() {
    let store = Leased::new(MemoryStore::new(rules()), both("50%"));
    let granted = futures::executor::block_on(async {
        let mut granted = 0;
        for _ in 0..1_100 {
            granted += usize::from(store.take(&one(), Now::Store).await.unwrap().is_granted());
        }
        granted
    });
    assert!((1_000..=1_005).contains(&granted), "{granted}");
}
