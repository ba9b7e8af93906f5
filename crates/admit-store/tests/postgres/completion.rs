//! A record that is completed in the service's own transaction.

use std::time::Duration;

use admit::idempotency::{Claim, Fingerprint, Outcome, RecordKey, Response, Terms};
use admit::{IdempotencyError, IdempotencyStore, Now, Timestamp};
use admit_testbed::Postgres;

use crate::{chain, session, store};

#[tokio::test]
async fn completion_commits_with_the_services_own_rows_or_not_at_all() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    postgres.psql("CREATE TABLE orders (id int)").unwrap();
    let mut client = session(&postgres).await;
    let key = RecordKey::new("tenant", "POST", "/orders", "order-7");
    let (payload, terms) = (Fingerprint::of("{}"), Terms::default());
    let outcome = Outcome::Response(Response { status: 201, headers: vec![], body: b"7".to_vec() });
    let Claim::Run(ticket) = store.claim(&key, &payload, &terms, Now::Store).await.unwrap() else { panic!() };
    for commit in [false, true] {
        for isolation in ["READ COMMITTED", "SERIALIZABLE"] {
            let transaction = client.transaction().await.unwrap();
            let sql = format!("SET TRANSACTION ISOLATION LEVEL {isolation}; INSERT INTO orders VALUES (7)");
            transaction.batch_execute(&sql).await.unwrap();
            store.complete_in(&transaction, &ticket, &outcome, &terms, Now::Store).await.unwrap();
            if commit {
                transaction.commit().await.unwrap();
                break;
            }
            drop(transaction); // Rolls back.
            let claim = store.claim(&key, &payload, &terms, Now::Store).await.unwrap();
            assert!(matches!(claim, Claim::InFlight { .. }), "{claim:?}");
            assert_eq!(postgres.psql("SELECT count(*) FROM orders").unwrap(), "0");
        }
    }
    assert_eq!(store.claim(&key, &payload, &terms, Now::Store).await.unwrap(), Claim::Done(outcome.clone()));
    assert_eq!(postgres.psql("SELECT count(*) FROM orders").unwrap(), "1");
    let transaction = client.transaction().await.unwrap();
    let again = store.complete_in(&transaction, &ticket, &outcome, &terms, Now::Store).await;
    assert!(matches!(again, Err(IdempotencyError::TicketLost)));
}

/// A transaction above `read committed` sees the record as it was at its first statement. Where the lease was renewed
/// since, or lapsed and was claimed by another, it must fail, and with it what the service wrote.
#[tokio::test]
async fn a_completion_from_an_old_snapshot_fails_and_commits_nothing() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    postgres.psql("CREATE TABLE orders (id int)").unwrap();
    let mut client = session(&postgres).await;
    let (payload, terms) = (Fingerprint::of("{}"), Terms::default());
    let outcome = Outcome::Tombstone { status: 201 };
    let start = Timestamp::from_unix_micros(1_700_000_000_000_000).unwrap();
    let at = |seconds| Now::At(start.saturating_add(Duration::from_secs(seconds)));
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        for is_renewed in [true, false] {
            let key = RecordKey::new("tenant", "POST", "/orders", &format!("{isolation} {is_renewed}"));
            let claim = async |now| store.claim(&key, &payload, &terms, now).await.unwrap();
            let Claim::Run(ticket) = claim(at(0)).await else { panic!("the key was free") };
            let transaction = client.transaction().await.unwrap();
            let sql = format!("SET TRANSACTION ISOLATION LEVEL {isolation}; INSERT INTO orders VALUES (7)");
            transaction.batch_execute(&sql).await.unwrap();
            if is_renewed {
                store.renew(&ticket, &terms, at(30)).await.unwrap();
            } else {
                assert!(matches!(claim(at(60)).await, Claim::Run(_)), "the lease has lapsed");
            }
            let error = store.complete_in(&transaction, &ticket, &outcome, &terms, at(31)).await.unwrap_err();
            assert!(matches!(error, IdempotencyError::Unavailable(_)), "{error:?}");
            assert!(chain(&error).contains("could not serialize access"), "{}", chain(&error));
            transaction.commit().await.unwrap(); // A failed transaction rolls back.
            assert_eq!(postgres.psql("SELECT count(*) FROM orders").unwrap(), "0");
            assert!(matches!(claim(at(61)).await, Claim::InFlight { .. }), "the key is still held");
        }
    }
}
