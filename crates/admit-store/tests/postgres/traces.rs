//! What a refusal leaves behind: nothing.

use admit::{BudgetStore, Charge, Now};
use admit_testbed::Postgres;

use admit_store::postgres::{PostgresConfig, PostgresStore};

use crate::{INGEST, READ, charge, logged, rules, session, store};

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
    let mut config = PostgresConfig::new(postgres.url());
    config.refusals = 0; // So that each asks the server.
    let store = PostgresStore::connect(config, rules()).await.unwrap();
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
            // Alone, and with another in one statement.
            assert!(!store.take(charges, Now::Store).await.unwrap().is_granted());
            let (one, other) =
                tokio::join!(store.take(charges, Now::Store), store.take(refused[0], Now::Store));
            assert!(!one.unwrap().is_granted() && !other.unwrap().is_granted());
            assert!(!store.peek(charges, Now::Store).await.unwrap().is_granted());
        }
        let after = traces(&postgres);
        assert_eq!(before.0, after.0, "a transaction id was given out");
        let bytes = postgres.psql(&format!("SELECT '{}'::pg_lsn - '{}'::pg_lsn", after.1, before.1)).unwrap();
        assert!(bytes.parse::<u64>().unwrap() < 400, "{bytes} bytes of log for 3,000 refusals");
    }
}

/// Two budgets on one bucket, of which one is quick and the other cheap: together they looked as if the bucket could pay.
#[tokio::test]
async fn two_refusals_by_different_budgets_lock_nothing() {
    let postgres = quiet();
    let mut config = PostgresConfig::new(postgres.url());
    config.refusals = 0;
    let store = PostgresStore::connect(config, rules()).await.unwrap();
    assert!(
        store.take(&[charge(INGEST, "k", 3.5, "4/hour burst 4")], Now::Store).await.unwrap().is_granted()
    );
    postgres.psql("UPDATE admit.rate_budgets SET refilled_at = refilled_at - interval '10 seconds'").unwrap();
    let (cheap, quick) =
        ([charge(INGEST, "k", 1.0, "4/hour burst 4")], [charge(INGEST, "k", 30.0, "1/s burst 40")]);
    let before = traces(&postgres).0;
    let (one, other) = tokio::join!(store.take(&cheap, Now::Store), store.take(&quick, Now::Store));
    assert!(!one.unwrap().is_granted() && !other.unwrap().is_granted());
    assert_eq!(traces(&postgres).0, before, "a transaction id was given out");
}

/// A take that waits for a row and then finds it spent has locked it. Once it kept it locked until its end was on disk.
#[tokio::test]
async fn a_lost_race_does_not_wait_for_the_disk() {
    let postgres = quiet();
    let store = store(&postgres.url()).await;
    let charges = [charge(INGEST, "hot", 1.0, "2/hour"), charge(READ, "hot", 1.0, "2/hour")];
    assert!(store.take(&charges, Now::Store).await.unwrap().is_granted());
    let (winner, loser) = (session(&postgres).await, session(&postgres).await);
    let key = admit::Key::of("hot");
    let one = format!("admit.take_one('{INGEST}', '{key}', 1, 1, 1, '2000-01-01', 60000)");
    let many = |scopes: &str, keys: &str, n: &str, numbers: &str, lines: &str| {
        format!(
            "admit.take_many({scopes}, {keys}, {n}, {n}, {n}, {numbers}, {n}, {n}, {n}, {lines}, '{{1}}', \
             '2000-01-01', 60000, NULL)"
        )
    };
    let hot = many(&format!("ARRAY['{INGEST}']"), &format!("ARRAY['{key}'::uuid]"), "'{1}'", "'{1}'", "NULL");
    let (scopes, keys) = (format!("ARRAY['{INGEST}', '{READ}']"), format!("ARRAY['{key}'::uuid, '{key}']"));
    let both = many(&scopes, &keys, "'{1,1}'", "'{1,2}'", "'{2}'");
    let each = format!(
        "admit.take_each(ARRAY['{INGEST}'], ARRAY['{key}'::uuid], '{{1}}', '{{1}}', '{{1}}', '2000-01-01', 60000)"
    );
    for (call, granted) in [(one, "granted"), (hot, "granted"), (both, "granted"), (each, "debited")] {
        postgres.psql("UPDATE admit.rate_budgets SET tokens = 1").unwrap();
        winner.batch_execute("BEGIN; UPDATE admit.rate_budgets SET tokens = 0").await.unwrap();
        let take = format!(
            "BEGIN; SELECT coalesce(({call}).{granted}::text, 'f') NOT IN ('f', 'false', '{{0}}'), \
             pg_current_xact_id_if_assigned() IS NOT NULL, current_setting('synchronous_commit')"
        );
        let (answer, ()) = tokio::join!(loser.simple_query(&take), async {
            // Until the loser waits for the winner's lock.
            let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
            while postgres.psql(waits).unwrap() == "0" {
                tokio::task::yield_now().await;
            }
            winner.batch_execute("COMMIT").await.unwrap();
        });
        let answer = answer.unwrap().into_iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => {
                Some([0, 1, 2].map(|i| row.get(i).unwrap().to_owned()))
            }
            _ => None,
        });
        assert_eq!(answer.unwrap(), ["f", "t", "off"], "granted, has a transaction id, waits for the disk");
        loser.batch_execute("COMMIT").await.unwrap();
    }
}

/// The sweep passes over a row that a take holds: it neither waits for it nor deletes it afterwards.
#[tokio::test]
async fn the_sweep_passes_over_a_row_in_use() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let (first, idle) = (admit::Timestamp::MIN, charge(READ, "idle", 1.0, "2/hour"));
    let used = charge(INGEST, "used", 1.0, "2/hour");
    assert!(store.take(&[used, idle], Now::At(first)).await.unwrap().is_granted());
    let taker = session(&postgres).await;
    let take = "BEGIN; UPDATE admit.rate_budgets SET refilled_at = now() WHERE scope = 'ingest_node'";
    taker.batch_execute(take).await.unwrap();
    assert_eq!(store.delete_idle(Now::Store).await.unwrap(), 1);
    taker.batch_execute("COMMIT").await.unwrap();
    assert_eq!(store.delete_idle(Now::Store).await.unwrap(), 0);
    assert_eq!(postgres.psql("SELECT scope FROM admit.rate_budgets").unwrap(), "ingest_node");
}

/// A take of two reads the clock, and may then wait for the first row. When the second was deleted meanwhile, as idle for
/// just longer than the retention, the take minted it full at a moment at which it was not.
#[tokio::test]
async fn the_sweep_leaves_what_a_take_that_waits_has_seen() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let key = admit::Key::of("k");
    let rows = format!(
        "INSERT INTO admit.rate_budgets VALUES ('{INGEST}', '{key}', 1, now()), \
         ('{READ}', '{key}', 0, now() - interval '59 minutes 59 seconds')"
    );
    postgres.psql(&rows).unwrap();
    let (holder, taker) = (session(&postgres).await, session(&postgres).await);
    let hold = format!("BEGIN; SELECT FROM admit.rate_budgets WHERE scope = '{INGEST}' FOR UPDATE");
    holder.batch_execute(&hold).await.unwrap();
    let take = format!(
        "SELECT (admit.take_many(ARRAY['{INGEST}', '{READ}'], ARRAY['{key}'::uuid, '{key}'], \
         '{{1,3590}}', '{{1,1}}', '{{1,3600}}', '{{1,2}}', '{{1,3590}}', '{{1,1}}', '{{1,3600}}', '{{2}}', '{{1}}', \
         NULL, 600000, NULL)).granted = '{{1}}'"
    );
    let (granted, deleted) = tokio::join!(taker.query_one(&take, &[]), async {
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        while postgres.psql(waits).unwrap() == "0" {
            tokio::task::yield_now().await;
        }
        let just_idle = "UPDATE admit.rate_budgets SET refilled_at = clock_timestamp() - interval '1 hour 1 millisecond' \
                         WHERE scope = 'secret_read_node'";
        postgres.psql(just_idle).unwrap();
        let deleted = store.delete_idle(Now::Store).await.unwrap();
        holder.batch_execute("ROLLBACK").await.unwrap();
        deleted
    });
    assert!(granted.unwrap().get::<_, bool>(0));
    assert_eq!(deleted, 0, "the row that the take has yet to debit");
    let left =
        postgres.psql("SELECT tokens FROM admit.rate_budgets WHERE scope = 'secret_read_node'").unwrap();
    assert!(left.parse::<f64>().unwrap() < 10.0, "{left} left of less than 3,600");
}

/// The sweep looks at a row, and another session takes from it before the sweep has locked it: debited, and then deleted, it
/// would have been minted full by the next take.
#[tokio::test]
async fn the_sweep_leaves_what_was_taken_from_while_it_looked() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let idle = "INSERT INTO admit.rate_budgets \
                SELECT 'ingest_node', md5(i::text)::uuid, 0, now() - interval '2 hours' FROM generate_series(1, 9) AS i";
    postgres.psql(idle).unwrap();
    let holder = session(&postgres).await;
    // The statement has its snapshot, and then waits to read what is kept.
    holder.batch_execute("BEGIN; LOCK TABLE admit.retention").await.unwrap();
    let (deleted, ()) = tokio::join!(store.delete_idle(Now::Store), async {
        while postgres.psql("SELECT count(*) FROM pg_locks WHERE NOT granted").unwrap() == "0" {
            tokio::task::yield_now().await;
        }
        let take = "SELECT granted FROM admit.take_one('ingest_node', md5('7')::uuid, 1, 1, 5, NULL, 9)";
        assert_eq!(postgres.psql(take).unwrap(), "t");
        holder.batch_execute("ROLLBACK").await.unwrap();
    });
    assert_eq!(deleted.unwrap(), 8);
    assert_eq!(postgres.psql("SELECT tokens FROM admit.rate_budgets").unwrap(), "4");
}

/// Replicas of the version before go on with the function they know, until it deletes fewer than they asked for.
#[tokio::test]
async fn replicas_of_the_version_before_sweep_too() {
    let postgres = Postgres::fast().unwrap();
    store(&postgres.url()).await;
    let rows = "INSERT INTO admit.rate_budgets SELECT 'ingest_node', md5(i::text)::uuid, 0, \
                now() - CASE WHEN i % 2 = 0 THEN interval '2 hours' ELSE interval '50 minutes' END \
                FROM generate_series(1, 2500) AS i";
    postgres.psql(rows).unwrap();
    let sweep = || postgres.psql("SELECT admit.delete_idle(1000, NULL, 1000)").unwrap();
    assert_eq!(
        [sweep(), sweep()],
        ["1250", "0"],
        "by what the store keeps, not by the millisecond asked for"
    );
}

/// `ingest_node`, idle for two hours, on more pages than one statement of the sweep looks at.
const MANY_IDLE: &str = "INSERT INTO admit.rate_budgets \
    SELECT 'ingest_node', md5(i::text)::uuid, 0, now() - interval '2 hours' FROM generate_series(1, 9000) AS i";

#[tokio::test]
async fn the_sweep_deletes_all_that_is_idle_in_batches() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    postgres.psql(MANY_IDLE).unwrap();
    assert_eq!(store.delete_idle(Now::Store).await.unwrap(), 9_000);
}

/// Where a sweep failed each time before it came to the end of a large table, the rest of that was never swept. Nor may
/// pages that cannot be swept keep it from the others.
#[tokio::test]
async fn the_sweep_goes_on_where_it_stopped() {
    let postgres = Postgres::with_settings(["fsync=off", "log_statement=all"]).unwrap();
    let store = store(&postgres.url()).await;
    postgres.psql(MANY_IDLE).unwrap();
    postgres
        .psql(
            "CREATE FUNCTION admit.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$; \
             CREATE TRIGGER t BEFORE DELETE ON admit.rate_budgets FOR EACH ROW \
             WHEN (OLD.bucket_key = md5('5000')::uuid) EXECUTE FUNCTION admit.fail()",
        )
        .unwrap();
    let mut seen = 0;
    let mut pages = || {
        let log = logged(&postgres);
        let told = log.lines().filter_map(|line| {
            let (page, _) = line.split_once("$3 = '")?.1.split_once("', $4 = '32'")?;
            page.parse().ok()
        });
        let all: Vec<u32> = told.collect();
        let new = all[seen..].to_vec();
        seen = all.len();
        new
    };
    assert!(store.delete_idle(Now::Store).await.is_err());
    let failed = *pages().last().unwrap();
    assert!(failed > 0);
    assert!(store.delete_idle(Now::Store).await.is_err());
    assert_eq!(pages(), [failed], "it went on there");
    assert!(store.delete_idle(Now::Store).await.is_err());
    let others = pages();
    assert!(others[0] > failed && others.last() == Some(&failed), "{others:?}");
    let left = || postgres.psql("SELECT count(*) FROM admit.rate_budgets").unwrap().parse::<u64>().unwrap();
    assert!(left() < 4_000, "what lies in those pages");
    postgres.psql("DROP TRIGGER t ON admit.rate_budgets").unwrap();
    let rest = left();
    assert_eq!(store.delete_idle(Now::Store).await.unwrap(), rest);
    assert_eq!(store.delete_idle(Now::Store).await.unwrap(), 0);
    assert_eq!(pages().iter().filter(|&&page| page == failed).count(), 2, "each went over the whole table");
}
