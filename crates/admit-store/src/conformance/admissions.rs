//! What the admission of a request that is to run once promises: look, take and claim as one.

use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, OnLapse, Outcome, RecordKey, Terms, Ticket};
use admit::{AdmissionError, AdmissionStore, Charge, Decision, Now, TakeError, Timestamp, Verdict};
use tokio::task::JoinSet;

use super::{ALPHA, BETA, START, Store, charge, seconds};

const HOURLY: &str = "2/hour";

fn key(name: &str) -> RecordKey {
    RecordKey::new("tenant", "POST", "/orders", name)
}

fn payload() -> Fingerprint {
    Fingerprint::of("payload")
}

fn hourly() -> [Charge; 1] {
    [charge(ALPHA, "caller", 1.0, HOURLY)]
}

async fn admit<S: AdmissionStore>(store: &S, charges: &[Charge], name: &str, now: Timestamp) -> Verdict {
    store.admit(charges, &key(name), &payload(), &Terms::default(), Now::At(now)).await.unwrap()
}

async fn runs<S: AdmissionStore>(store: &S, charges: &[Charge], name: &str, now: Timestamp) -> Ticket {
    match admit(store, charges, name, now).await {
        Verdict::Run(ticket, _) => ticket,
        other => panic!("it should run: {other:?}"),
    }
}

/// The tokens that are left of a bucket of two.
async fn left<S: Store>(store: &S) -> f64 {
    let bucket = store.bucket(&ALPHA, &hourly()[0].key).await;
    bucket.map_or(2.0, |bucket| bucket.tokens)
}

/// What runs has paid and holds its key by a ticket that a completion takes.
pub async fn a_free_key_whose_charges_fit_is_charged_and_claimed<S: Store>(store: S) {
    let verdict = admit(&store, &hourly(), "k", START).await;
    let Verdict::Run(ticket, grant) = verdict else { panic!("{verdict:?}") };
    assert_eq!((ticket.key, ticket.lease_until), (key("k"), seconds(60.0)));
    assert_eq!((grant.at, grant.left[0]), (Some(START), Some(1.0)));
    assert_eq!(left(&store).await, 1.0);
    let record = store.record(&key("k")).await.unwrap();
    assert_eq!(
        (record.fence, record.fingerprint, record.expires_at),
        (ticket.fence, payload(), seconds(86_400.0))
    );
    let outcome = Outcome::Tombstone { status: 201 };
    store.complete(&ticket, &outcome, &Terms::default(), Now::At(START)).await.unwrap();
    assert_eq!(admit(&store, &hourly(), "k", START).await, Verdict::Taken(Claim::Done(outcome)));
    assert_eq!(left(&store).await, 1.0, "a replay is not charged");
}

/// In flight, another payload, blocked: told as they are, and not charged.
pub async fn a_key_that_is_taken_costs_nothing<S: Store>(store: S) {
    runs(&store, &hourly(), "k", START).await;
    let blocking = Terms { on_lapse: OnLapse::StayBlocked, ..Terms::default() };
    let cases = [
        (0.0, payload(), Claim::InFlight { lease_left: Duration::from_secs(60) }),
        (59.0, payload(), Claim::InFlight { lease_left: Duration::from_secs(1) }),
        (1.0, Fingerprint::of("other"), Claim::Mismatch),
        (60.0, payload(), Claim::Blocked),
    ];
    for (after, fingerprint, expected) in cases {
        let now = Now::At(seconds(after));
        let verdict = store.admit(&hourly(), &key("k"), &fingerprint, &blocking, now).await.unwrap();
        assert_eq!(verdict, Verdict::Taken(expected));
    }
    assert_eq!(left(&store).await, 1.0);
}

/// A replay is answered though its bucket is empty.
pub async fn a_key_that_is_taken_is_told_before_an_empty_bucket<S: Store>(store: S) {
    runs(&store, &hourly(), "a", START).await;
    runs(&store, &hourly(), "b", START).await;
    assert!(matches!(admit(&store, &hourly(), "c", START).await, Verdict::Refused(_)));
    assert!(matches!(admit(&store, &hourly(), "a", START).await, Verdict::Taken(Claim::InFlight { .. })));
    let never = [charge(ALPHA, "caller", 3.0, HOURLY)];
    assert!(matches!(admit(&store, &never, "a", START).await, Verdict::Taken(Claim::InFlight { .. })));
    assert!(matches!(admit(&store, &never, "c", START).await, Verdict::Refused(_)));
}

/// All charges or none; and the key stays free, so that a retry that fits runs.
pub async fn a_refusal_claims_nothing_and_debits_nothing<S: Store>(store: S) {
    let one = charge(BETA, "other", 1.0, "1/hour");
    runs(&store, std::slice::from_ref(&one), "first", START).await;
    let both = [hourly()[0].clone(), one];
    let Verdict::Refused(refusal) = admit(&store, &both, "k", START).await else {
        panic!("one does not fit")
    };
    let Decision::Refused(taken) = store.take(&both, Now::At(START)).await.unwrap() else { panic!() };
    assert_eq!(refusal, taken);
    assert_eq!(store.record(&key("k")).await, None);
    assert_eq!(store.bucket(&ALPHA, &both[0].key).await, None);
    runs(&store, &both, "k", seconds(3_600.0)).await;
    assert_eq!(left(&store).await, 1.0);
}

/// A store that remembers what it refused still refused takes of a bucket that an admission by a larger budget had filled.
pub async fn what_an_admission_by_a_larger_budget_leaves_is_there_for_takes<S: Store>(store: S) {
    let take = async |after| store.take(&hourly(), Now::At(seconds(after))).await.unwrap().is_granted();
    assert!(take(0.0).await && take(0.0).await && !take(0.0).await && !take(1.0).await);
    let larger = [charge(ALPHA, "caller", 1.0, "100/second")];
    runs(&store, &larger, "k", seconds(1.0)).await;
    assert!(take(1.0).await);
}

/// After its lease or its time is over a key is claimed again, and charged again, by a larger fence.
pub async fn a_key_that_is_free_again_runs_again_and_pays_again<S: Store>(store: S) {
    let first = runs(&store, &hourly(), "k", START).await;
    let second = runs(&store, &hourly(), "k", seconds(60.0)).await;
    assert!(second.fence > first.fence);
    assert!(left(&store).await < 1.0);
    // Of a lapsed run that is refused, the record stays as it is.
    let before = store.record(&key("k")).await;
    assert!(matches!(admit(&store, &hourly(), "k", seconds(120.0)).await, Verdict::Refused(_)));
    assert_eq!(store.record(&key("k")).await, before);
    let day = seconds(60.0 + 86_400.0);
    let verdict = store
        .admit(&hourly(), &key("k"), &Fingerprint::of("other"), &Terms::default(), Now::At(day))
        .await
        .unwrap();
    let Verdict::Run(third, _) = verdict else { panic!("{verdict:?}") };
    assert!(third.fence > second.fence);
    assert!(store.release(&second, Now::At(day)).await.is_err());
    store.release(&third, Now::At(day)).await.unwrap();
    assert_eq!(store.record(&key("k")).await, None);
}

/// Without charges, or with some that cost nothing, it is a claim; with wrong ones a mistake, whatever the key.
pub async fn what_costs_nothing_is_claimed_and_what_is_wrong_is_a_mistake<S: Store>(store: S) {
    let free = [charge(ALPHA, "caller", 0.0, HOURLY)];
    runs(&store, &[], "none", START).await;
    let verdict = admit(&store, &free, "zero", START).await;
    assert!(matches!(&verdict, Verdict::Run(_, grant) if grant.left[0].is_none()), "{verdict:?}");
    assert!(matches!(admit(&store, &free, "zero", START).await, Verdict::Taken(Claim::InFlight { .. })));
    let wrong = [hourly()[0].clone(), charge(ALPHA, "caller", 1.0, "3/hour")];
    for name in ["zero", "new"] {
        let error =
            store.admit(&wrong, &key(name), &payload(), &Terms::default(), Now::At(START)).await.unwrap_err();
        assert!(matches!(error, AdmissionError::Budgets(TakeError::Charge(_))), "{error:?}");
    }
    assert_eq!(store.record(&key("new")).await, None);
}

/// Of many at once one key runs once and is paid for once.
pub async fn of_many_admissions_of_a_key_one_runs_and_one_is_charged<S: Store>(store: S) {
    for round in 0..20 {
        let name = format!("key {round}");
        let charges = [charge(ALPHA, &name, 1.0, "10/hour"), charge(BETA, &name, 1.0, "10/hour")];
        let mut admissions = JoinSet::new();
        for _ in 0..8 {
            let (store, charges, name) = (store.clone(), charges.clone(), name.clone());
            admissions.spawn(async move { admit(&store, &charges, &name, START).await });
        }
        let verdicts = admissions.join_all().await;
        let ran = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Run(..))).count();
        let in_flight = verdicts
            .iter()
            .filter(|verdict| matches!(verdict, Verdict::Taken(Claim::InFlight { .. })))
            .count();
        assert_eq!((ran, in_flight), (1, 7), "{verdicts:?}");
        for charge in &charges {
            assert_eq!(store.bucket(&charge.scope, &charge.key).await.unwrap().tokens, 9.0);
        }
    }
}

/// Many keys on one bucket: as many run as there are tokens, and no other leaves a record. Takes of the same buckets in
/// between, in another order, neither deadlock nor come away with more.
pub async fn concurrent_admissions_and_takes_grant_exactly_what_is_there<S: Store>(store: S) {
    for (round, tokens) in [1_usize, 13, 40].into_iter().enumerate() {
        let budget = format!("{tokens}/hour");
        let bucket = format!("bucket {round}");
        let charges = [charge(BETA, &bucket, 1.0, &budget), charge(ALPHA, &bucket, 1.0, &budget)];
        let mut admissions = JoinSet::new();
        for i in 0..64 {
            let (store, charges) = (store.clone(), charges.clone());
            admissions.spawn(async move {
                if i % 4 == 0 {
                    return store.take(&charges, Now::At(START)).await.unwrap().is_granted();
                }
                let name = format!("{round} {i}");
                let runs = matches!(admit(&store, &charges, &name, START).await, Verdict::Run(..));
                assert_eq!(store.record(&key(&name)).await.is_some(), runs);
                runs
            });
        }
        let granted = admissions.join_all().await.into_iter().filter(|granted| *granted).count();
        assert_eq!(granted, tokens);
    }
}
