//! What idempotency records promise.

use std::collections::BTreeSet;
use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, OnLapse, Outcome, RecordKey, Response, Terms, Ticket};
use admit::{IdempotencyError, IdempotencyStore, Now, Timestamp};
use tokio::task::JoinSet;

use super::{START, Store, micros, seconds};

fn key(name: &str) -> RecordKey {
    RecordKey::new("tenant", "POST", "/orders", name)
}

fn payload() -> Fingerprint {
    Fingerprint::of("payload")
}

fn blocking() -> Terms {
    Terms { on_lapse: OnLapse::StayBlocked, ..Terms::default() }
}

fn created() -> Outcome {
    let headers = vec![("location".to_owned(), b"/orders/7".to_vec())];
    Outcome::Response(Response { status: 201, headers, body: b"created".to_vec() })
}

async fn claim<S: IdempotencyStore>(store: &S, name: &str, now: Timestamp) -> Claim {
    store.claim(&key(name), &payload(), &Terms::default(), Now::At(now)).await.unwrap()
}

async fn run<S: IdempotencyStore>(store: &S, name: &str, now: Timestamp) -> Ticket {
    match claim(store, name, now).await {
        Claim::Run(ticket) => ticket,
        other => panic!("the key should be free: {other:?}"),
    }
}

async fn complete<S: IdempotencyStore>(
    store: &S,
    ticket: &Ticket,
    now: Timestamp,
) -> Result<(), IdempotencyError> {
    store.complete(ticket, &created(), &Terms::default(), Now::At(now)).await
}

fn is_lost<T>(result: Result<T, IdempotencyError>) -> bool {
    matches!(result, Err(IdempotencyError::TicketLost))
}

/// The first claim gets a ticket; after its completion all others get what it came to.
pub async fn a_first_claim_runs_and_later_ones_replay<S: Store>(store: S) {
    let ticket = run(&store, "k", START).await;
    assert_eq!((ticket.key, ticket.lease_until), (key("k"), seconds(60.0)));
    complete(&store, &ticket, seconds(1.0)).await.unwrap();
    for after in [1.0, 2.0, 86_400.0] {
        assert_eq!(claim(&store, "k", seconds(after)).await, Claim::Done(created()));
    }
    assert!(matches!(claim(&store, "another", START).await, Claim::Run(_)));
}

/// Header values that are no text, an empty body, and a body of a mebibyte come back as they were.
pub async fn responses_are_kept_byte_for_byte<S: Store>(store: S) {
    let every_byte: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..1_u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let header = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
    let responses = [
        Response { status: 204, headers: vec![], body: vec![] },
        Response {
            status: 200,
            headers: vec![
                header("link", b"</a>"),
                header("etag", b"\xff\xfe\x00\x80"),
                header("link", b"</b>"),
                header("x-empty", b""),
                header("", &every_byte),
            ],
            body: every_byte.clone(),
        },
        Response { status: 999, headers: vec![header("content-type", b"text/plain")], body: large },
    ];
    for (i, response) in responses.into_iter().enumerate() {
        let name = format!("response {i}");
        let ticket = run(&store, &name, START).await;
        let outcome = Outcome::Response(response);
        store.complete(&ticket, &outcome, &Terms::default(), Now::At(START)).await.unwrap();
        assert!(claim(&store, &name, START).await == Claim::Done(outcome), "response {i}");
    }
}

/// While the first runs, others are told how long its lease lasts.
pub async fn a_claim_in_flight_is_told_what_is_left_of_the_lease<S: Store>(store: S) {
    run(&store, "k", START).await;
    let left = |micros| Claim::InFlight { lease_left: Duration::from_micros(micros) };
    assert_eq!(claim(&store, "k", START).await, left(60_000_000));
    assert_eq!(claim(&store, "k", micros(59_999_999)).await, left(1));
}

/// The key with another payload is a mistake, running or completed; it does not disturb the run.
pub async fn another_payload_is_a_mismatch<S: Store>(store: S) {
    let ticket = run(&store, "k", START).await;
    let other = async || {
        store
            .claim(&key("k"), &Fingerprint::of("other"), &Terms::default(), Now::At(seconds(1.0)))
            .await
            .unwrap()
    };
    assert_eq!(other().await, Claim::Mismatch);
    complete(&store, &ticket, seconds(1.0)).await.unwrap();
    assert_eq!(other().await, Claim::Mismatch);
    assert_eq!(claim(&store, "k", seconds(1.0)).await, Claim::Done(created()));
}

/// A run that let its lease lapse is run again by the next claim.
pub async fn a_lapsed_run_runs_again<S: Store>(store: S) {
    let first = run(&store, "k", START).await;
    let second = run(&store, "k", seconds(60.0)).await;
    assert!(second.fence > first.fence);
    complete(&store, &second, seconds(61.0)).await.unwrap();
    assert_eq!(claim(&store, "k", seconds(61.0)).await, Claim::Done(created()));
}

/// Where a run must not be started twice, its key is blocked until the time to live is over.
pub async fn a_lapsed_run_stays_blocked_where_the_terms_say_so<S: Store>(store: S) {
    let claim =
        async |after| store.claim(&key("k"), &payload(), &blocking(), Now::At(seconds(after))).await.unwrap();
    assert!(matches!(claim(0.0).await, Claim::Run(_)));
    assert_eq!(claim(60.0).await, Claim::Blocked);
    assert_eq!(claim(86_399.0).await, Claim::Blocked);
    assert!(matches!(claim(86_400.0).await, Claim::Run(_)));
}

/// A renewed run holds its key from then on, and never for less.
pub async fn renewing_extends_the_lease<S: Store>(store: S) {
    let ticket = run(&store, "k", START).await;
    let terms = Terms::default();
    let renewed = store.renew(&ticket, &terms, Now::At(seconds(59.0))).await.unwrap();
    assert_eq!(renewed, Ticket { lease_until: seconds(119.0), ..ticket.clone() });
    let in_flight = Claim::InFlight { lease_left: Duration::from_secs(19) };
    assert_eq!(claim(&store, "k", seconds(100.0)).await, in_flight);
    let behind = store.renew(&renewed, &terms, Now::At(seconds(1.0))).await.unwrap();
    assert_eq!(behind.lease_until, seconds(119.0), "a clock behind takes nothing away");
    complete(&store, &ticket, seconds(118.0)).await.unwrap(); // The first ticket has the same fence.
    assert!(is_lost(store.renew(&renewed, &terms, Now::At(seconds(118.0))).await));
}

/// From the moment its lease lapses a ticket neither completes nor renews nor releases, though nobody else claimed.
pub async fn a_lapsed_ticket_can_do_nothing<S: Store>(store: S) {
    let ticket = run(&store, "k", START).await;
    let before = store.record(&key("k")).await;
    let now = seconds(60.0);
    assert!(is_lost(complete(&store, &ticket, now).await));
    assert!(is_lost(store.renew(&ticket, &Terms::default(), Now::At(now)).await));
    assert!(is_lost(store.release(&ticket, Now::At(now)).await));
    assert_eq!(store.record(&key("k")).await, before);
    assert!(complete(&store, &ticket, micros(59_999_999)).await.is_ok());
}

/// A ticket whose key another run has can do nothing, even by a clock that says that its lease holds.
pub async fn a_superseded_ticket_can_do_nothing<S: Store>(store: S) {
    let first = run(&store, "k", START).await;
    let second = run(&store, "k", seconds(60.0)).await;
    assert!(is_lost(complete(&store, &first, seconds(30.0)).await));
    assert!(is_lost(store.renew(&first, &Terms::default(), Now::At(seconds(30.0))).await));
    assert!(is_lost(store.release(&first, Now::At(seconds(30.0))).await));
    complete(&store, &second, seconds(61.0)).await.unwrap();
}

/// What was completed stays as it is.
pub async fn a_ticket_is_good_for_one_completion<S: Store>(store: S) {
    let ticket = run(&store, "k", START).await;
    complete(&store, &ticket, START).await.unwrap();
    let other = Outcome::Tombstone { status: 500 };
    assert!(is_lost(store.complete(&ticket, &other, &Terms::default(), Now::At(START)).await));
    assert!(is_lost(store.release(&ticket, Now::At(START)).await));
    assert_eq!(claim(&store, "k", START).await, Claim::Done(created()));
}

/// A released key is as if it had never been claimed, for another payload too.
pub async fn a_released_key_runs_again<S: Store>(store: S) {
    let ticket = run(&store, "k", START).await;
    store.release(&ticket, Now::At(seconds(1.0))).await.unwrap();
    assert_eq!(store.record(&key("k")).await, None);
    assert!(is_lost(store.release(&ticket, Now::At(seconds(1.0))).await));
    let other = Fingerprint::of("other");
    let again = store.claim(&key("k"), &other, &Terms::default(), Now::At(seconds(1.0))).await.unwrap();
    assert!(matches!(again, Claim::Run(_)));
    assert!(is_lost(complete(&store, &ticket, seconds(2.0)).await), "the released ticket lost its say");
}

/// Fences tell all claims apart, whatever became of earlier ones.
pub async fn every_claim_has_a_larger_fence<S: Store>(store: S) {
    let mut last = run(&store, "first", START).await.fence;
    for round in 0..10 {
        let ticket = run(&store, "k", START).await;
        assert!(ticket.fence > last, "round {round}");
        last = ticket.fence;
        store.release(&ticket, Now::At(START)).await.unwrap();
    }
    let expired = run(&store, "expired", START).await.fence;
    assert!(expired > last);
    store.delete_expired(Now::At(seconds(100_000.0))).await.unwrap();
    assert!(run(&store, "expired", seconds(100_000.0)).await.fence > expired);
}

/// The time to live counts from the completion; after it the key is free.
pub async fn a_record_is_forgotten_when_its_time_is_over<S: Store>(store: S) {
    let ticket = run(&store, "k", START).await;
    let terms = Terms { ttl: Duration::from_secs(10), ..Terms::default() };
    store.complete(&ticket, &created(), &terms, Now::At(seconds(5.0))).await.unwrap();
    assert_eq!(claim(&store, "k", micros(14_999_999)).await, Claim::Done(created()));
    let other = Fingerprint::of("other");
    let look = store.look(&key("k"), &other, &terms, Now::At(seconds(15.0))).await.unwrap();
    assert_eq!(look, None);
    assert!(matches!(claim(&store, "k", seconds(15.0)).await, Claim::Run(_)));
}

/// A response too large to keep is remembered by its status.
pub async fn a_tombstone_is_not_run_again<S: Store>(store: S) {
    let ticket = run(&store, "k", START).await;
    let tombstone = Outcome::Tombstone { status: 200 };
    store.complete(&ticket, &tombstone, &Terms::default(), Now::At(START)).await.unwrap();
    assert_eq!(claim(&store, "k", seconds(1.0)).await, Claim::Done(tombstone));
}

/// A look tells what a claim would, unless the key is free, and changes nothing.
pub async fn look_writes_nothing<S: Store>(store: S) {
    let look = async |after: f64, terms: &Terms| {
        store.look(&key("k"), &payload(), terms, Now::At(seconds(after))).await.unwrap()
    };
    let terms = Terms::default();
    assert_eq!(look(0.0, &terms).await, None);
    assert_eq!(store.record(&key("k")).await, None);

    let ticket = run(&store, "k", START).await;
    let before = store.record(&key("k")).await;
    assert_eq!(look(50.0, &terms).await, Some(Claim::InFlight { lease_left: Duration::from_secs(10) }));
    assert_eq!(look(60.0, &terms).await, None, "the next claim would run");
    assert_eq!(look(60.0, &blocking()).await, Some(Claim::Blocked));
    assert_eq!(store.record(&key("k")).await, before);

    complete(&store, &ticket, START).await.unwrap();
    assert_eq!(look(1.0, &terms).await, Some(Claim::Done(created())));
    let other = store.look(&key("k"), &Fingerprint::of("other"), &terms, Now::At(START)).await.unwrap();
    assert_eq!(other, Some(Claim::Mismatch));
}

/// The sweep deletes what is over, and neither a run that outlasts its time to live nor a blocked key.
pub async fn deleting_expired_records_keeps_those_that_are_held<S: Store>(store: S) {
    let short = Terms { ttl: Duration::from_secs(10), ..Terms::default() };
    let held = store.claim(&key("held"), &payload(), &short, Now::At(START)).await.unwrap();
    let Claim::Run(held) = held else { panic!("the key was free") };
    let done = run(&store, "done", START).await;
    store.complete(&done, &created(), &short, Now::At(START)).await.unwrap();
    let blocked = store.claim(&key("blocked"), &payload(), &blocking(), Now::At(START)).await.unwrap();
    assert!(matches!(blocked, Claim::Run(_)));

    assert_eq!(store.delete_expired(Now::At(micros(9_999_999))).await.unwrap(), 0);
    assert_eq!(store.delete_expired(Now::At(seconds(10.0))).await.unwrap(), 1);
    assert_eq!(store.record(&key("done")).await, None);
    assert!(matches!(claim(&store, "held", seconds(10.0)).await, Claim::InFlight { .. }));
    assert_eq!(store.delete_expired(Now::At(seconds(60.0))).await.unwrap(), 1, "the lease of the held one");
    assert!(is_lost(complete(&store, &held, seconds(59.0)).await));
    assert!(store.record(&key("blocked")).await.is_some());
    assert_eq!(store.delete_expired(Now::At(seconds(86_400.0))).await.unwrap(), 1);
}

/// Of a hundred claims at one instant, one runs.
pub async fn concurrent_claims_run_once<S: Store>(store: S) {
    let mut claims = JoinSet::new();
    for _ in 0..100 {
        let store = store.clone();
        claims.spawn(async move { claim(&store, "k", START).await });
    }
    let claims = claims.join_all().await;
    let runs = claims.iter().filter(|claim| matches!(claim, Claim::Run(_))).count();
    let waits = claims.iter().filter(|claim| matches!(claim, Claim::InFlight { .. })).count();
    assert_eq!((runs, waits), (1, 99));

    let mut claims = JoinSet::new();
    for i in 0..100 {
        let store = store.clone();
        claims.spawn(async move { run(&store, &format!("key {i}"), START).await.fence });
    }
    let fences: BTreeSet<_> = claims.join_all().await.into_iter().collect();
    assert_eq!(fences.len(), 100, "each claim has a fence of its own");
}
