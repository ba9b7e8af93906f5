//! What a refusal leaves behind: nothing.

use admit::{BudgetStore, Charge, Now};
use admit_testbed::Postgres;
use futures::future::join_all;

use crate::{INGEST, READ, charge, store};

/// Transaction ids given out, and bytes of log written, so far. Asking gives out none.
fn traces(postgres: &Postgres) -> (u64, String) {
    let xid = "SELECT pg_snapshot_xmax(pg_current_snapshot()), pg_current_wal_insert_lsn()";
    let answer = postgres.psql(xid).unwrap();
    let (xid, lsn) = answer.split_once('|').unwrap();
    (xid.parse().unwrap(), lsn.to_owned())
}

fn quiet() -> Postgres {
    // Without background writers of the log.
    Postgres::with_settings(["autovacuum=off", "checkpoint_timeout=1d", "bgwriter_lru_maxpages=0"]).unwrap()
}

#[tokio::test]
async fn a_refusal_has_no_transaction_id_and_writes_no_log() {
    let postgres = quiet();
    let store = store(&postgres.url()).await;
    let spent = charge(INGEST, "spent", 1.0, "1/hour");
    let fresh = charge(READ, "fresh", 1.0, "1/hour");
    let never_seen = charge(READ, "never seen", 1.0, "1/hour");
    assert!(store.take(&[spent.clone(), fresh.clone()], Now::Store).await.unwrap().is_granted());
    let refused: [&[Charge]; 2] =
        [std::slice::from_ref(&spent), &[spent.clone(), never_seen, charge(READ, "x", 1.0, "1/s")]];
    for charges in refused {
        // A background process logs a snapshot now and then after activity; wait for it to have done so.
        postgres.psql("CHECKPOINT").unwrap();
        let before = traces(&postgres);
        for _ in 0..1_000 {
            assert!(!store.take(charges, Now::Store).await.unwrap().is_granted());
            assert!(!store.peek(charges, Now::Store).await.unwrap().is_granted());
        }
        let after = traces(&postgres);
        assert_eq!(before.0, after.0, "a transaction id was given out");
        let bytes = postgres.psql(&format!("SELECT '{}'::pg_lsn - '{}'::pg_lsn", after.1, before.1)).unwrap();
        assert!(bytes.parse::<u64>().unwrap() < 400, "{bytes} bytes of log for 1,000 refusals");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_race_writes_no_row_and_does_not_wait_for_the_disk() {
    let postgres = quiet();
    let store = store(&postgres.url()).await;
    const TAKES: usize = 400;
    const GRANTS: usize = 100;
    let budget = format!("{GRANTS}/hour");
    let charges = [charge(INGEST, "hot", 1.0, &budget), charge(READ, "hot", 1.0, &budget)];
    for charges in [&charges[..1], &charges[..]] {
        postgres
            .psql("TRUNCATE admit.rate_budgets; SELECT pg_stat_reset(), pg_stat_reset_shared('wal')")
            .unwrap();
        let decisions = join_all((0..TAKES).map(|_| {
            let (store, charges) = (store.clone(), charges.to_vec());
            tokio::spawn(async move { store.take(&charges, Now::Store).await.unwrap().is_granted() })
        }));
        let granted = decisions.await.into_iter().filter(|granted| *granted.as_ref().unwrap()).count();
        assert_eq!(granted, GRANTS);
        let left = postgres.psql("SELECT max(tokens) < 1 FROM admit.rate_budgets").unwrap();
        assert_eq!(left, "t");
    }
}
