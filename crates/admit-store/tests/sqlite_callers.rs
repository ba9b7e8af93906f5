//! Callers that go away, and callers that wait: none loses or leaks tokens, and none waits without a bound.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(feature = "sqlite")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use admit::idempotency::{Fingerprint, RecordKey, Terms};
use admit::{
    AdmissionStore, BudgetStore, Charge, Clock, Cost, Decision, Key, MonotonicClock, Now, Rules, Scope,
    TakeError, Timestamp, UnavailableKind, Verdict,
};
use admit_store::sqlite::{Settings, SqliteStore};
use futures::FutureExt;
use futures::future::BoxFuture;
use tempfile::TempDir;

const A: Scope = Scope::from_static("a");

/// A clock that always shows the same, and at which the store's thread can be made to wait, in the middle of a take.
struct Stop {
    stopped: Arc<AtomicBool>,
    waits: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Clock for Stop {
    fn now(&self) -> Timestamp {
        let is_stores = std::thread::current().name() == Some("admit-sqlite");
        if is_stores && self.stopped.load(Ordering::SeqCst) {
            self.waits.send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
        }
        Timestamp::MIN
    }
}

/// The thread of the store.
struct Thread {
    stopped: Arc<AtomicBool>,
    waits: Receiver<()>,
    go_on: Sender<()>,
}

impl Thread {
    /// The next take that it comes to stops it.
    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// Until a take has stopped it.
    fn waits(&self) {
        self.waits.recv().unwrap();
    }

    fn go_on(&self) {
        self.stopped.store(false, Ordering::SeqCst);
        self.go_on.send(()).unwrap();
    }
}

async fn open(settings: Settings) -> (SqliteStore, Thread, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let ((waits, waiting), (go_on, gone_on)) = (channel(), channel());
    let stopped = Arc::<AtomicBool>::default();
    let clock = Stop { stopped: stopped.clone(), waits, go_on: Mutex::new(gone_on) };
    let rules = Rules::new([A]).unwrap();
    let store = SqliteStore::open_with(path, rules, settings, clock).await.unwrap();
    (store, Thread { stopped, waits: waiting, go_on }, directory)
}

fn cost(tokens: f64) -> [Charge; 1] {
    let charge = Charge::one(A, Key::hashed("k"), "10/hour".parse().unwrap());
    [Charge { cost: Cost::new(tokens).unwrap(), ..charge }]
}

/// A take that was asked for, and whose answer nobody has looked at.
fn asked(store: &SqliteStore, tokens: f64) -> BoxFuture<'static, Result<Decision, TakeError>> {
    let store = store.clone();
    let mut take = async move { store.take(&cost(tokens), Now::Store).await }.boxed();
    assert!((&mut take).now_or_never().is_none());
    take
}

/// What is left of the ten.
async fn left(store: &SqliteStore) -> f64 {
    match store.peek(&cost(0.001), Now::Store).await.unwrap() {
        Decision::Granted(grant) => grant.left[0].unwrap(),
        refused => panic!("{refused:?}"),
    }
}

/// The take of a caller that went away while its transaction ran stayed spent.
#[tokio::test]
async fn a_cancelled_caller_neither_loses_nor_leaks_tokens() {
    let (store, thread, _directory) = open(Settings::default()).await;
    thread.stop();
    let in_flight = asked(&store, 4.0);
    thread.waits();
    let queued = asked(&store, 2.0);
    let stays = asked(&store, 1.0);
    drop((in_flight, queued));
    thread.go_on();
    let Decision::Granted(grant) = stays.await.unwrap() else { panic!("there were ten") };
    assert_eq!(grant.left[0], Some(9.0), "what the one in flight took was given back before");
    assert_eq!(left(&store).await, 9.0);
    assert_eq!(store.unanswered_takes(), 0);
}

/// So did that of a caller that went away when its answer was there, and nobody had looked at it yet.
#[tokio::test]
async fn an_answer_that_nobody_came_for_is_given_back() {
    let (store, _thread, _directory) = open(Settings::default()).await;
    let answered = asked(&store, 4.0);
    assert_eq!(left(&store).await, 6.0);
    drop(answered);
    assert_eq!(left(&store).await, 10.0);
    assert_eq!(store.unanswered_takes(), 0);
}

/// An admission, of a key of this name, that was asked for, and whose answer nobody has looked at.
fn admission(store: &SqliteStore, tokens: f64, name: &str) -> BoxFuture<'static, Verdict> {
    let (store, key) = (store.clone(), RecordKey::new("tenant", "POST", "/", name));
    let mut admission = async move {
        let (payload, terms) = (Fingerprint::of("payload"), Terms::default());
        store.admit(&cost(tokens), &key, &payload, &terms, Now::Store).await.unwrap()
    }
    .boxed();
    assert!((&mut admission).now_or_never().is_none());
    admission
}

/// The admission of a caller that went away while its transaction ran, or when its answer was there, stayed debited, its key was
/// in flight until the lease lapsed, and nobody counted it.
#[tokio::test]
async fn an_admission_that_nobody_waits_for_is_undone() {
    let (store, thread, _directory) = open(Settings::default()).await;
    thread.stop();
    let in_flight = admission(&store, 4.0, "in flight");
    thread.waits();
    let queued = admission(&store, 2.0, "queued");
    drop((in_flight, queued));
    thread.go_on();
    assert_eq!(left(&store).await, 10.0);
    let answered = admission(&store, 4.0, "answered");
    assert_eq!(left(&store).await, 6.0);
    drop(answered);
    assert_eq!(left(&store).await, 10.0);
    for name in ["in flight", "queued", "answered"] {
        assert!(matches!(admission(&store, 1.0, name).await, Verdict::Run(..)), "{name}");
    }
    assert_eq!(left(&store).await, 7.0);
    assert_eq!(store.unanswered_takes(), 0);
}

/// What a cancelled caller wanted to give back stayed spent.
#[tokio::test]
async fn what_is_given_back_is_so_without_its_caller() {
    let (store, thread, _directory) = open(Settings::default()).await;
    thread.stop();
    let taken = async { store.take(&cost(4.0), Now::Store).await.unwrap() };
    let given_back = async {
        thread.waits();
        assert!(store.refund(&cost(3.0)).now_or_never().is_none());
        thread.go_on();
    };
    assert!(tokio::join!(taken, given_back).0.is_granted());
    assert_eq!(left(&store).await, 9.0);
}

/// An operation waited for those before it for as long as they took.
#[tokio::test]
async fn who_waited_too_long_is_unavailable() {
    let max_wait = Duration::from_millis(20);
    let (store, thread, _directory) = open(Settings { max_wait, ..Settings::default() }).await;
    thread.stop();
    let first = asked(&store, 1.0);
    thread.waits();
    let late = asked(&store, 2.0);
    let clock = MonotonicClock::start();
    let began = clock.now();
    while clock.now().since(began) <= max_wait {
        std::thread::yield_now();
    }
    thread.go_on();
    assert!(first.await.unwrap().is_granted());
    match late.await {
        Err(TakeError::Unavailable(cause)) => assert_eq!(cause.kind(), UnavailableKind::TimedOut),
        other => panic!("{other:?}"),
    }
    while store.take(&cost(1.0), Now::Store).await.is_err() {} // On a busy machine it may be late again.
    assert_eq!(store.unanswered_takes(), 0);
}
