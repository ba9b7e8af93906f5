//! Fences grow with every claim of a key.

use admit::idempotency::{Claim, Fingerprint, RecordKey, Terms};
use admit::{IdempotencyStore, Now};
use admit_testbed::Postgres;

use crate::{session, store};

/// A claim drew its fence and then waited for another transaction's row with the same key. When that was claimed again
/// and released before the wait was over, the claim went on with its number, which was below that of the other.
#[tokio::test]
async fn a_claim_that_waited_has_a_larger_fence_than_those_it_waited_for() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let other = session(&postgres).await;
    let key = RecordKey::new("tenant", "POST", "/", "k");
    let hex: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let claim = format!(
        "SELECT ((admit.idempotency_claim('\\x{hex}', sha256(''), 60000000, 60000000, false, NULL, 60000)).record).fence"
    );
    let claim = async || other.query_one(&claim, &[]).await.unwrap().get::<_, i64>(0);
    let release = async |fence: i64| {
        let release = format!("SELECT admit.idempotency_release('\\x{hex}', {fence}, NULL, 60000)");
        assert!(other.query_one(&release, &[]).await.unwrap().get::<_, bool>(0));
    };
    other.batch_execute("BEGIN").await.unwrap();
    let first = claim().await;
    let waiting = tokio::spawn(async move {
        store.claim(&key, &Fingerprint::of(""), &Terms::default(), Now::Store).await.unwrap()
    });
    while postgres.psql("SELECT count(*) FROM pg_locks WHERE NOT granted").unwrap() == "0" {
        tokio::task::yield_now().await;
    }
    release(first).await;
    let second = claim().await;
    release(second).await;
    other.batch_execute("COMMIT").await.unwrap();
    let Claim::Run(ticket) = waiting.await.unwrap() else { panic!("the key was free") };
    assert!(ticket.fence.number() > second, "{:?} came after {second}", ticket.fence);
}
