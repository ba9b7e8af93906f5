//! An admission on PostgreSQL: one statement, which grants and claims or does neither, whatever happens.

use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, OnLapse, Outcome, RecordKey, Response, Terms};
use admit::{
    AdmissionError, AdmissionStore, BudgetStore, Charge, Decision, IdempotencyStore, Now, TakeError,
    Timestamp, UnavailableKind, Verdict, one_by_one,
};
use admit_store::postgres::{PostgresConfig, PostgresStore};
use admit_testbed::Postgres;
use futures::future::join_all;

use crate::{
    INGEST, READ, SETTINGS, charge, lock_waits, logged, patient, rules, session, store, waits_for_rows,
};

fn key(name: &str) -> RecordKey {
    RecordKey::new("tenant", "POST", "/orders", name)
}

async fn admit(store: &PostgresStore, charges: &[Charge], name: &str) -> Result<Verdict, AdmissionError> {
    let (key, payload, terms) = (key(name), Fingerprint::of("payload"), Terms::default());
    let admit = store.admit(charges, &key, &payload, &terms, Now::Store);
    tokio::time::timeout(Duration::from_secs(30), admit).await.expect("hangs")
}

fn runs(verdict: &Result<Verdict, AdmissionError>) -> bool {
    matches!(verdict, Ok(Verdict::Run(..)))
}

/// How many statements the server was sent so far, those of `psql` left out.
fn statements(postgres: &Postgres) -> usize {
    logged(postgres).lines().filter(|line| line.contains("execute <unnamed>")).count()
}

/// Once a request was looked up, charged and claimed by a round trip each.
#[tokio::test]
async fn an_admission_is_one_statement_whatever_it_comes_to() {
    let postgres = Postgres::with_settings(["log_statement=all"]).unwrap();
    let store = store(&postgres.url()).await;
    let two = [charge(INGEST, "k", 1.0, "1/hour"), charge(READ, "k", 1.0, "5/hour")];
    for (name, expected) in [("a", "Run"), ("a", "Taken(InFlight"), ("b", "Refused")] {
        let before = statements(&postgres);
        let verdict = format!("{:?}", admit(&store, &two, name).await.unwrap());
        assert!(verdict.starts_with(expected), "{verdict}");
        assert_eq!(statements(&postgres) - before, 1, "{expected}");
    }
    let other = [charge(INGEST, "other", 1.0, "1/hour")];
    let before = statements(&postgres);
    let verdict =
        one_by_one(&store, &other, &key("c"), &Fingerprint::of(""), &Terms::default(), Now::Store).await;
    assert!(runs(&verdict));
    assert_eq!(statements(&postgres) - before, 3, "what is counted");
}

#[tokio::test]
async fn a_replay_and_a_refusal_have_no_transaction_id() {
    let postgres = Postgres::with_settings(["autovacuum=off"]).unwrap();
    let store = store(&postgres.url()).await;
    let one = [charge(INGEST, "k", 1.0, "1/hour")];
    assert!(runs(&admit(&store, &one, "a").await));
    let ids = || postgres.psql("SELECT pg_snapshot_xmax(pg_current_snapshot())").unwrap();
    let before = ids();
    assert!(matches!(admit(&store, &one, "a").await.unwrap(), Verdict::Taken(Claim::InFlight { .. })));
    assert!(matches!(admit(&store, &one, "b").await.unwrap(), Verdict::Refused(_)));
    assert_eq!(ids(), before);
}

/// Replays among the requests of a statement take no part in it, and the rest is granted in the order in which it came; a key
/// that two of them have is claimed by the first.
#[tokio::test]
async fn a_batch_is_answered_as_one_after_the_other() {
    let postgres = Postgres::with_settings(["log_statement=all"]).unwrap();
    let store = store(&postgres.url()).await;
    let hot =
        |cost| [charge(INGEST, "hot", cost, "0.1/s burst 90"), charge(READ, "hot", 1.0, "0.1/s burst 300")];
    for i in (0..40).step_by(4) {
        assert!(runs(&admit(&store, &hot(2.0), &i.to_string()).await));
    }
    // 70 tokens are left: the first keys want two each, the others three.
    let names: Vec<String> = (0..40).chain([1, 2, 39]).map(|i| i.to_string()).collect();
    let before = statements(&postgres);
    let charges: Vec<_> = (0..names.len()).map(|i| hot(if i < 20 { 2.0 } else { 3.0 })).collect();
    let verdicts =
        join_all(names.iter().zip(&charges).map(|(name, charges)| admit(&store, charges, name))).await;
    assert_eq!(statements(&postgres) - before, 1, "they share a statement");
    let mut tokens = 70.0;
    for (i, verdict) in verdicts.iter().enumerate() {
        let cost = if i < 20 { 2.0 } else { 3.0 };
        let (is_taken, fits) = (i % 4 == 0 && i < 40 || i == 40 || i == 41, tokens >= cost);
        match verdict.as_ref().unwrap() {
            Verdict::Taken(Claim::InFlight { .. }) => assert!(is_taken, "{i}"),
            Verdict::Run(_, grant) => {
                assert!(!is_taken && fits, "{i}");
                tokens -= cost;
                assert!((grant.left[0].unwrap() - tokens).abs() < 3.0, "{i} {grant:?}"); // It refills.
            }
            Verdict::Refused(_) => assert!(!is_taken && tokens < cost + 3.0, "{i} {tokens}"),
            other => panic!("{i} {other:?}"),
        }
    }
    let records = "SELECT count(*) FROM admit.idempotency_records";
    let ran = verdicts.iter().filter(|verdict| runs(verdict)).count();
    assert_eq!(postgres.psql(records).unwrap(), (10 + ran).to_string());
}

/// A client whose budget was empty, or that retried while a record that is over was locked, and sent one key on many connections,
/// had a statement made for each of them; everybody else waited for all of these.
#[tokio::test]
async fn what_was_told_of_a_key_is_told_to_all_that_ask_the_same() {
    let postgres = Postgres::with_settings(["log_statement=all"]).unwrap();
    let store = store(&postgres.url()).await;
    let one = [charge(INGEST, "k", 1.0, "1/hour")];
    let Ok(Verdict::Run(ticket, _)) = admit(&store, &one, "slow").await else { panic!() };
    let before = statements(&postgres);
    for verdict in join_all((0..100).map(|_| admit(&store, &one, "k"))).await {
        assert!(matches!(verdict, Ok(Verdict::Refused(_))), "{verdict:?}");
    }
    assert_eq!(statements(&postgres) - before, 1);

    let client = session(&postgres).await;
    client.batch_execute("BEGIN; SELECT FROM admit.idempotency_records FOR UPDATE").await.unwrap();
    let (key, payload, terms) = (key("slow"), Fingerprint::of("payload"), Terms::default());
    let lapsed = || store.admit(&one, &key, &payload, &terms, Now::At(ticket.lease_until));
    let before = statements(&postgres);
    for verdict in join_all((0..100).map(|_| lapsed())).await {
        let in_flight = Verdict::Taken(Claim::InFlight { lease_left: Duration::ZERO });
        assert_eq!(verdict.unwrap(), in_flight);
    }
    assert_eq!(statements(&postgres) - before, 1);
}

/// The bodies of a thousand replays came in one answer. Now each fetches its own.
#[tokio::test]
async fn replays_share_a_statement_and_not_their_responses() {
    let postgres = Postgres::with_settings(["log_statement=all"]).unwrap();
    let store = patient(&postgres.url(), SETTINGS[0]).await;
    let one = [charge(INGEST, "k", 1.0, "100/hour")];
    let mut responses = Vec::new();
    for i in 0..20_u8 {
        let Ok(Verdict::Run(ticket, _)) = admit(&store, &one, &i.to_string()).await else { panic!() };
        let headers = vec![("content-type".to_owned(), b"text/plain".to_vec())];
        let body: Vec<u8> =
            (0..50_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 ^ i).collect();
        let outcome = Outcome::Response(Response { status: 201, headers, body });
        store.complete(&ticket, &outcome, &Terms::default(), Now::Store).await.unwrap();
        responses.push(outcome);
    }
    let before = statements(&postgres);
    let names: Vec<String> = (0..20).map(|i| i.to_string()).collect();
    let replays = join_all(names.iter().map(|name| admit(&store, &one, name))).await;
    for (replay, response) in replays.into_iter().zip(responses) {
        assert_eq!(replay.unwrap(), Verdict::Taken(Claim::Done(response)));
    }
    assert_eq!(statements(&postgres) - before, 1 + 20);
    let shared = "SELECT pg_column_size(record) FROM admit.admit(\
        (SELECT array_agg(record_key) FROM admit.idempotency_records), \
        (SELECT array_agg(fingerprint) FROM admit.idempotency_records), \
        array_fill(1::bigint, ARRAY[20]), array_fill(1::bigint, ARRAY[20]), array_fill(true, ARRAY[20]), \
        array_fill(1, ARRAY[20]), '{ingest}', ARRAY[gen_random_uuid()], '{1}', '{1}', '{1}', '{1}', '{1}', '{1}', '{1}', \
        NULL, '{20}', NULL, 100, NULL) WHERE taken_number IS NOT NULL";
    let sizes: Vec<usize> =
        postgres.psql(shared).unwrap().lines().map(|size| size.trim().parse().unwrap()).collect();
    assert!(sizes.len() == 20 && sizes.iter().all(|&size| size < 300), "{sizes:?}");
}

/// Of requests with one key that want different things each has its own answer, and all have one.
#[tokio::test]
async fn requests_of_one_key_that_differ_are_told_each() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let costs: Vec<_> = (0..20).map(|i| [charge(INGEST, "k", f64::from(30 - i), "15/hour")]).collect();
    let verdicts = join_all(costs.iter().map(|cost| admit(&store, cost, "k"))).await;
    let ran = verdicts.iter().filter(|verdict| runs(verdict)).count();
    let of_others = |verdict: &_| matches!(verdict, Ok(Verdict::Refused(_) | Verdict::Taken(_)));
    assert_eq!((ran, verdicts.iter().filter(|verdict| of_others(verdict)).count()), (1, 19), "{verdicts:?}");
}

/// Who sends another payload by a key whose run is over was told what the first one was, who had no tokens left.
#[tokio::test]
async fn another_payload_is_a_mismatch_beside_one_that_is_refused_too() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let one = [charge(INGEST, "k", 1.0, "1/hour")];
    let key = RecordKey::new("tenant", "POST", "/orders", "k");
    let began = Timestamp::from_unix_micros(1_750_000_000_000_000).unwrap();
    let send = async |payload: &str, now: Timestamp| {
        let payload = Fingerprint::of(payload);
        store.admit(&one, &key, &payload, &Terms::default(), Now::At(now)).await.unwrap()
    };
    assert!(matches!(send("a", began).await, Verdict::Run(..)));
    let lapsed = began.saturating_add(Duration::from_secs(61));
    let verdicts = join_all([send("a", lapsed), send("b", lapsed)]).await;
    assert!(matches!(verdicts[..], [Verdict::Refused(_), Verdict::Taken(Claim::Mismatch)]), "{verdicts:?}");
}

/// Requests of several callers in two processes' stead, each key from both: exactly one run, one charge and one record a key.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_key_that_two_pools_admit_one_runs() {
    let postgres = Postgres::fast().unwrap();
    let stores = [store(&postgres.url()).await, store(&postgres.url()).await];
    const KEYS: usize = 200;
    let buckets = [charge(INGEST, "hot", 1.0, "1000/h"), charge(READ, "hot", 1.0, "1000/h")];
    let admissions = (0..4 * KEYS).map(|i| {
        let (store, mut buckets) = (stores[i % 2].clone(), buckets.clone());
        buckets.rotate_left(i % 2); // In either order.
        tokio::spawn(async move { admit(&store, &buckets, &(i / 4).to_string()).await.unwrap() })
    });
    let mut ran = 0;
    for verdict in join_all(admissions).await {
        match verdict.unwrap() {
            Verdict::Run(..) => ran += 1,
            Verdict::Taken(Claim::InFlight { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ran, KEYS);
    let there = "SELECT count(*), count(DISTINCT fence) FROM admit.idempotency_records";
    assert_eq!(postgres.psql(there).unwrap(), format!("{KEYS}|{KEYS}"));
    let left: f64 = postgres.psql("SELECT max(tokens) FROM admit.rate_budgets").unwrap().parse().unwrap();
    assert!((1000.0 - KEYS as f64..1000.0 - KEYS as f64 + 20.0).contains(&left), "{left}"); // It refills.
}

/// Where a statement had one request alone, those with its key that were to come after it were told its error.
#[tokio::test]
async fn a_request_that_fails_takes_none_with_its_key_with_it() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let check = format!("ALTER TABLE admit.rate_budgets ADD CHECK (scope <> '{READ}')");
    postgres.psql(&check).unwrap();
    let (good, bad) = ([charge(INGEST, "k", 1.0, "10/s")], [charge(READ, "k", 1.0, "10/s")]);
    let verdicts = join_all([&bad, &bad, &good, &bad].map(|charges| admit(&store, charges, "one"))).await;
    assert!(verdicts[..2].iter().all(|verdict| matches!(verdict, Err(AdmissionError::Budgets(_)))));
    assert!(runs(&verdicts[2]), "{verdicts:?}");
    assert!(matches!(verdicts[3], Ok(Verdict::Taken(Claim::InFlight { .. }))), "{verdicts:?}");
}

/// A connection cut off at any instant leaves both the debit and the claim, or neither; and what is granted is debited.
#[tokio::test(flavor = "multi_thread")]
async fn connections_cut_off_under_load_leave_debit_and_claim_together() {
    let postgres = std::sync::Arc::new(Postgres::start().unwrap());
    let store = store(&postgres.url()).await;
    let one = charge(INGEST, "hot", 1.0, "100000/h burst 20000");
    let Decision::Granted(grant) = store.take(std::slice::from_ref(&one), Now::Store).await.unwrap() else {
        panic!()
    };
    let at = Now::At(grant.at.unwrap()); // No more tokens come.
    let callers = (0..8).map(|caller| {
        let (store, one) = (store.clone(), one.clone());
        tokio::spawn(async move {
            let (mut granted, mut failed) = (0, 0);
            for i in 0..200 {
                let (key, payload) = (key(&format!("{caller} {i}")), Fingerprint::of(""));
                let charges = std::slice::from_ref(&one);
                match store.admit(charges, &key, &payload, &Terms::default(), at).await {
                    Ok(Verdict::Run(..)) => granted += 1,
                    Err(AdmissionError::Budgets(TakeError::Unavailable(_))) => failed += 1,
                    other => panic!("{other:?}"),
                }
            }
            (granted, failed)
        })
    });
    let cut =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'admit'";
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let cutter = std::thread::spawn({
        let postgres = postgres.clone();
        move || {
            while is_done.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                postgres.psql(cut).unwrap();
            }
        }
    });
    let outcomes: Vec<(u32, u32)> = join_all(callers).await.into_iter().map(Result::unwrap).collect();
    drop(done);
    cutter.join().unwrap();
    let granted: u32 = outcomes.iter().map(|(granted, _)| granted).sum();
    let failed: u32 = outcomes.iter().map(|(_, failed)| failed).sum();
    assert!(failed > 0, "no connection was cut off in mid-load");
    let left: f64 = postgres.psql("SELECT tokens FROM admit.rate_budgets").unwrap().parse().unwrap();
    let claimed: f64 =
        postgres.psql("SELECT count(*) FROM admit.idempotency_records").unwrap().parse().unwrap();
    assert_eq!(20_000.0 - 1.0 - left, claimed, "debits and claims");
    assert!(f64::from(granted) <= claimed && claimed <= f64::from(granted + failed), "{granted} {failed}");
    assert!(claimed - f64::from(granted) <= store.unanswered_takes() as f64, "{}", store.unanswered_takes());
}

/// A caller that goes away before its answer has neither spent nor claimed.
#[tokio::test]
async fn an_admission_that_nobody_waits_for_is_undone() {
    let postgres = Postgres::fast().unwrap();
    let store = waits_for_rows(&postgres).await;
    let one = [charge(INGEST, "k", 1.0, "0.01/s burst 10")];
    assert!(runs(&admit(&store, &one, "first").await));
    let client = session(&postgres).await;
    client.batch_execute("BEGIN; SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();
    tokio::select! {
        _ = admit(&store, &one, "dropped") => panic!("the row is locked"),
        () = lock_waits(&postgres, "1") => {}
    }
    client.batch_execute("ROLLBACK").await.unwrap();
    // The next admission comes after that statement; what it gave back, and the key, follow on their own.
    assert!(runs(&admit(&store, &one, "next").await));
    while store
        .look(&key("dropped"), &Fingerprint::of("payload"), &Terms::default(), Now::Store)
        .await
        .unwrap()
        .is_some()
        || !postgres.psql("SELECT tokens FROM admit.rate_budgets").unwrap().starts_with("8.")
    {
        tokio::task::yield_now().await;
    }
}

/// A key that was claimed for nobody and could not be freed was told at debug and counted nowhere; it may be blocked for its
/// whole time though nothing ran.
#[tokio::test]
async fn a_key_that_cannot_be_freed_is_counted() {
    let postgres = Postgres::fast().unwrap();
    let store = waits_for_rows(&postgres).await;
    let one = [charge(INGEST, "k", 1.0, "0.01/s burst 10")];
    let terms = Terms { on_lapse: OnLapse::StayBlocked, ..Terms::default() };
    let payload = Fingerprint::of("payload");
    let blocked = async |name: &str| store.look(&key(name), &payload, &terms, Now::Store).await.unwrap();
    assert!(runs(&admit(&store, &one, "first").await));
    let client = session(&postgres).await;
    let admit_nobody = async |name: &str| {
        client.batch_execute("BEGIN; SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();
        let key = key(name);
        tokio::select! {
            _ = store.admit(&one, &key, &payload, &terms, Now::Store) => panic!("the row is locked"),
            () = lock_waits(&postgres, "1") => {}
        }
        client.batch_execute("ROLLBACK").await.unwrap();
        assert!(runs(&admit(&store, &one, &format!("after {name}")).await));
    };
    admit_nobody("freed").await;
    while blocked("freed").await.is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.unanswered_takes(), 0);

    postgres.psql("DROP FUNCTION admit.idempotency_release").unwrap();
    admit_nobody("blocked").await;
    let counted = async {
        while store.unanswered_takes() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), counted).await.expect("it is counted");
    assert!(blocked("blocked").await.is_some());
}

/// A record that a service's transaction has locked holds up nobody: who wants its key is told that it is in flight.
#[tokio::test]
async fn a_locked_record_holds_nobody_up() {
    let postgres = Postgres::fast().unwrap();
    let store = waits_for_rows(&postgres).await;
    let one = [charge(INGEST, "k", 1.0, "10/hour")];
    let Ok(Verdict::Run(ticket, _)) = admit(&store, &one, "slow").await else { panic!() };
    let mut client = session(&postgres).await;
    let service = client.transaction().await.unwrap();
    let terms = Terms::default();
    let outcome = Outcome::Tombstone { status: 200 };
    store.complete_in(&service, &ticket, &outcome, &terms, Now::Store).await.unwrap();
    let lapsed = Now::At(ticket.lease_until);
    for (name, runs) in [("slow", false), ("other", true)] {
        let verdict =
            store.admit(&one, &key(name), &Fingerprint::of("payload"), &terms, lapsed).await.unwrap();
        let in_flight = Verdict::Taken(Claim::InFlight { lease_left: Duration::ZERO });
        assert_eq!((matches!(verdict, Verdict::Run(..)), verdict == in_flight), (runs, !runs), "{verdict:?}");
    }
    service.commit().await.unwrap();
    let verdict = store.admit(&one, &key("slow"), &Fingerprint::of("payload"), &terms, lapsed).await.unwrap();
    assert_eq!(verdict, Verdict::Taken(Claim::Done(outcome)));
}

/// A key that was claimed while the admission waited for its bucket, and that a service's transaction was completing, was waited
/// for with the bucket locked.
#[tokio::test]
async fn a_record_made_meanwhile_is_not_waited_for() {
    let postgres = Postgres::fast().unwrap();
    let store = waits_for_rows(&postgres).await;
    let one = [charge(INGEST, "k", 1.0, "10/hour")];
    assert!(runs(&admit(&store, &one, "first").await));
    let holder = session(&postgres).await;
    holder.batch_execute("BEGIN; SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();
    let mut client = session(&postgres).await;
    let outcome = Outcome::Tombstone { status: 200 };
    let meanwhile = async {
        lock_waits(&postgres, "1").await;
        let (payload, terms) = (Fingerprint::of("payload"), Terms::default());
        let claim = store.claim(&key("k"), &payload, &terms, Now::Store).await.unwrap();
        let Claim::Run(ticket) = claim else { panic!("{claim:?}") };
        let service = client.transaction().await.unwrap();
        store.complete_in(&service, &ticket, &outcome, &terms, Now::Store).await.unwrap();
        holder.batch_execute("ROLLBACK").await.unwrap();
        service
    };
    let (verdict, service) = tokio::join!(admit(&store, &one, "k"), meanwhile);
    assert!(matches!(verdict, Ok(Verdict::Taken(Claim::InFlight { .. }))), "{verdict:?}");
    service.commit().await.unwrap();
    let left: f64 = postgres.psql("SELECT tokens FROM admit.rate_budgets").unwrap().parse().unwrap();
    assert!((9.0..9.5).contains(&left), "{left}");
}

/// A bucket that somebody holds is unavailable in time, claims nothing, and takes none of the batch down with it.
#[tokio::test]
async fn a_locked_bucket_is_unavailable_for_those_that_need_it() {
    let postgres = Postgres::fast().unwrap();
    let mut config = PostgresConfig::new(postgres.url());
    config.lock_timeout = Duration::from_millis(200);
    let store = PostgresStore::connect(config, rules()).await.unwrap();
    let (held, free) = ([charge(INGEST, "held", 1.0, "9/hour")], [charge(INGEST, "free", 1.0, "9/hour")]);
    assert!(runs(&admit(&store, &held, "a").await) && runs(&admit(&store, &free, "b").await));
    let client = session(&postgres).await;
    let lock =
        "BEGIN; SELECT FROM admit.rate_budgets WHERE tokens < 8.001 ORDER BY refilled_at LIMIT 1 FOR UPDATE";
    client.batch_execute(lock).await.unwrap();
    let answers = join_all([admit(&store, &held, "c"), admit(&store, &free, "d")]).await;
    let kind = match &answers[0] {
        Err(AdmissionError::Budgets(TakeError::Unavailable(cause))) => cause.kind(),
        other => panic!("{other:?}"),
    };
    assert_eq!((kind, runs(&answers[1])), (UnavailableKind::TimedOut, true));
    client.batch_execute("ROLLBACK").await.unwrap();
    assert!(runs(&admit(&store, &held, "c").await));
}

/// Each statement waited for the row that somebody held, for as long as statements wait for locks, and all admissions waited
/// behind it.
#[tokio::test]
async fn a_locked_bucket_holds_up_one_statement_not_each() {
    let postgres = Postgres::fast().unwrap();
    let mut config = PostgresConfig::new(postgres.url());
    config.lock_timeout = Duration::from_millis(500);
    let store = PostgresStore::connect(config, rules()).await.unwrap();
    let (held, free) = ([charge(INGEST, "held", 1.0, "1000/s")], [charge(INGEST, "free", 1.0, "1000/s")]);
    assert!(runs(&admit(&store, &held, "a").await));
    let client = session(&postgres).await;
    client.batch_execute("BEGIN; SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();
    let rounds = async {
        for round in 0..100 {
            let names = [format!("{round} b"), format!("{round} c")];
            let answers = join_all([admit(&store, &held, &names[0]), admit(&store, &free, &names[1])]).await;
            assert!(answers[0].is_err() && runs(&answers[1]), "{round} {answers:?}");
        }
    };
    tokio::time::timeout(Duration::from_secs(25), rounds).await.expect("a hundred waits");
    client.batch_execute("ROLLBACK").await.unwrap();
    assert!(runs(&admit(&store, &held, "d").await), "known to be held, and free");
}

/// A new request waited for the bucket of a replay that came along with it, and was unavailable with it.
#[tokio::test]
async fn a_replay_wants_no_bucket() {
    let postgres = Postgres::fast().unwrap();
    let store = waits_for_rows(&postgres).await;
    let (held, free) = ([charge(INGEST, "held", 1.0, "9/hour")], [charge(INGEST, "free", 1.0, "9/hour")]);
    assert!(runs(&admit(&store, &held, "a").await));
    let client = session(&postgres).await;
    client.batch_execute("BEGIN; SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();
    let answers = join_all([admit(&store, &held, "a"), admit(&store, &free, "b")]).await;
    assert!(matches!(answers[0], Ok(Verdict::Taken(_))) && runs(&answers[1]), "{answers:?}");
    client.batch_execute("ROLLBACK").await.unwrap();
}

/// All waited for the end of a statement whose callers had all gone.
#[tokio::test]
async fn nobody_waits_behind_a_statement_that_nobody_waits_for() {
    let postgres = Postgres::fast().unwrap();
    let store = waits_for_rows(&postgres).await;
    let (held, free) = ([charge(INGEST, "held", 1.0, "9/hour")], [charge(INGEST, "free", 1.0, "9/hour")]);
    assert!(runs(&admit(&store, &held, "a").await));
    let client = session(&postgres).await;
    client.batch_execute("BEGIN; SELECT FROM admit.rate_budgets FOR UPDATE").await.unwrap();
    tokio::select! {
        _ = admit(&store, &held, "b") => panic!("the row is locked"),
        () = lock_waits(&postgres, "1") => {}
    }
    assert!(runs(&admit(&store, &free, "c").await), "the bucket of the other is locked still");
    lock_waits(&postgres, "0").await; // What nobody waits for any more is cancelled.
    client.batch_execute("ROLLBACK").await.unwrap();
}
