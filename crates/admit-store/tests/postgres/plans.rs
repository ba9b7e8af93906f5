//! The plans of the statements inside the functions: by index, whatever the size of the tables.

use admit_testbed::Postgres;

use crate::store;

const ROWS: &str = "
    INSERT INTO admit.rate_budgets
    SELECT (ARRAY['ingest_node', 'secret_read_node'])[1 + i % 2], md5(i::text)::uuid, 1, now() - i * interval '1 second'
    FROM generate_series(1, 20000) AS i;
    INSERT INTO admit.idempotency_records (record_key, fingerprint, fence, expires_at, status, lease_until)
    SELECT sha256(i::text::bytea), sha256(''), i, now() + i * interval '1 second', CASE WHEN i % 2 = 0 THEN 200 END,
           CASE WHEN i % 2 = 1 THEN now() END
    FROM generate_series(1, 20000) AS i;
    ANALYZE;
";

/// What `sql` logs of the plans inside its functions, in a session of its own.
fn plans(postgres: &Postgres, sql: &str) -> String {
    const EXPLAIN: &str = "LOAD 'auto_explain'; \
                           SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;";
    let path = postgres.home().path().join("log");
    let log = || std::fs::read_to_string(&path).unwrap();
    let before = log().len();
    postgres.psql(&format!("{EXPLAIN} {sql}; DO $$ BEGIN RAISE LOG 'end of plans'; END $$")).unwrap();
    while !log()[before..].contains("LOG:  end of plans") {
        std::thread::yield_now(); // The log is written behind the answer.
    }
    log()[before..].to_owned()
}

/// Takes of these buckets, one each or all at once.
fn many(buckets: &str, costs: &str, run_lines: &str, run_times: &str) -> String {
    format!(
        "SELECT admit.take_many({buckets}, '{costs}', '{{1,1}}', '{{5,5}}', '{{1,2}}', '{costs}', '{{1,1}}', '{{5,5}}', \
         {run_lines}, '{run_times}', NULL, 9, NULL)"
    )
}

/// Whether the plans read a whole table or index. `Index Cond` is on the line below the scan that it narrows.
fn reads_all(plans: &str) -> bool {
    let lines: Vec<&str> = plans.lines().collect();
    let whole_index = |pair: &[&str]| {
        let scan = pair[0].contains("Index Scan using") && pair[0].contains("rate_budgets");
        scan && !pair[1].contains("Index Cond")
    };
    plans.contains("Seq Scan on rate_budgets") || lines.windows(2).any(whole_index)
}

#[tokio::test]
async fn every_statement_finds_its_rows_by_an_index() {
    let postgres = Postgres::fast().unwrap();
    store(&postgres.url()).await;
    postgres.psql(ROWS).unwrap();
    let key = "md5('7')::uuid";
    let other = "md5('8')::uuid";
    let two = format!("ARRAY['ingest_node', 'secret_read_node'], ARRAY[{other}, {key}]");
    let new = "ARRAY['ingest_node', 'secret_read_node'], ARRAY[md5('new')::uuid, md5('newer')::uuid]";
    for (sql, indexes) in [
        (
            format!("SELECT admit.take_one('secret_read_node', {key}, 1, 1, 5, NULL, 9)"),
            &["rate_budgets_pkey"][..],
        ),
        (
            format!("SELECT admit.take_each({two}, '{{1,1}}', '{{1,1}}', '{{5,5}}', NULL, 9)"),
            &["rate_budgets_pkey"],
        ),
        (many(&two, "{1,1}", "NULL", "{1,1}"), &["rate_budgets_pkey"]),
        (many(&two, "{1,1}", "'{2}'", "{1}"), &["rate_budgets_pkey"]),
        (many(new, "{1,1}", "NULL", "{1,1}"), &["rate_budgets_pkey"]),
        (many(&two, "{-1,-1}", "NULL", "{1,1}"), &["rate_budgets_pkey"]),
        (
            // Refused: looked at, not debited.
            many(&two, "{1,99}", "'{2}'", "{1}"),
            &["rate_budgets_pkey"],
        ),
        (format!("SELECT admit.held_buckets({two}, 9)"), &["rate_budgets_pkey"]),
        (format!("SELECT admit.held_buckets({new}, 9)"), &["rate_budgets_pkey"]),
        (format!("SELECT admit.peek({two}, NULL)"), &["rate_budgets_pkey"]),
        (
            // A record that is over, one that is not, and a new one.
            format!(
                "SELECT admit.admit(ARRAY[sha256('7'), sha256('8'), sha256('new')], array_fill(sha256(''), ARRAY[3]), \
                 '{{9,9,9}}', '{{9,9,9}}', '{{f,f,f}}', '{{1,1,1}}', ARRAY['secret_read_node'], ARRAY[{key}], \
                 '{{1}}', '{{1}}', '{{5}}', '{{1}}', '{{1}}', '{{1}}', '{{5}}', NULL, '{{3}}', NULL, 9, NULL)"
            ),
            &["idempotency_records_pkey", "rate_budgets_pkey"],
        ),
        // By no index, but no more than the pages it is told.
        ("SELECT admit.delete_idle_pages(3600000000, NULL, 3, 4)".to_owned(), &[]),
        ("SELECT admit.delete_idle(3600000000, NULL, 4)".to_owned(), &[]),
        ("SELECT admit.idempotency_look(sha256('7'), NULL)".to_owned(), &["idempotency_records_pkey"]),
        (
            "SELECT admit.idempotency_claim(sha256('7'), sha256(''), 9, 9, false, NULL, 9)".to_owned(),
            &["idempotency_records_pkey"],
        ),
        (
            "SELECT admit.idempotency_renew(sha256('9'), 9, NULL, 9, '2000-01-01', 9)".to_owned(),
            &["idempotency_records_pkey"],
        ),
        (
            "SELECT admit.idempotency_complete(sha256('9'), 9, 9, 200, NULL, NULL, NULL, '2000-01-01')"
                .to_owned(),
            &["idempotency_records_pkey"],
        ),
        (
            "SELECT admit.idempotency_release(sha256('11'), 11, '2000-01-01', 9)".to_owned(),
            &["idempotency_records_pkey"],
        ),
        (
            "SELECT admit.idempotency_delete_expired(now() + interval '1 hour', 100)".to_owned(),
            &["idempotency_records_over_at_idx"],
        ),
    ] {
        let plans = plans(&postgres, &sql);
        assert!(!plans.contains("Seq Scan") && !reads_all(&plans), "{sql}\n{plans}");
        for index in indexes {
            assert!(
                plans.contains(&format!("using {index}")) || plans.contains(&format!("on {index}")),
                "{sql}\n{plans}"
            );
        }
    }
}

#[tokio::test]
async fn the_sweep_reads_only_the_pages_it_is_told() {
    let postgres = Postgres::fast().unwrap();
    store(&postgres.url()).await;
    postgres.psql(ROWS).unwrap();
    // In the order in which they were made, each idle for a second longer.
    let gone = "SELECT string_agg(page::text, ',' ORDER BY page) FROM generate_series(90, 110) AS page WHERE NOT EXISTS (\
                 SELECT FROM admit.rate_budgets WHERE (ctid::text::point)[0] = page)";
    let plans = plans(&postgres, "SELECT admit.delete_idle_pages(3600000000, NULL, 100, 4)");
    assert!(plans.contains("Tid Range Scan on rate_budgets"), "{plans}");
    assert_eq!(postgres.psql(gone).unwrap(), "100,101,102,103");
    let rest = "SELECT next_page IS NULL FROM admit.delete_idle_pages(3600000000, NULL, 100, 10000)";
    assert_eq!(postgres.psql(rest).unwrap(), "t");
    let beyond = "SELECT deleted, next_page FROM admit.delete_idle_pages(3600000000, NULL, 100000, 10)";
    assert_eq!(postgres.psql(beyond).unwrap(), "0|");
}

/// Each take wrote to two indexes and left its page, for an index that only the sweep used.
#[tokio::test]
async fn a_take_changes_no_index() {
    let postgres = Postgres::with_settings(["autovacuum=off"]).unwrap();
    store(&postgres.url()).await;
    let takes = "DO $$ BEGIN FOR i IN 1..300 LOOP \
                 PERFORM admit.take_one('ingest_node', md5('7')::uuid, 1, 1000, 1000, NULL, 9); COMMIT; \
                 END LOOP; END $$";
    postgres.psql(takes).unwrap();
    let changes = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'rate_budgets'";
    loop {
        let changes = postgres.psql(changes).unwrap();
        if changes != "0|0" {
            assert_eq!(changes, "299|299");
            return;
        }
        tokio::task::yield_now().await; // Told when the session has ended.
    }
}

/// The plans of a session are kept; those made while the table was small must not read all of it when it is large.
#[tokio::test]
async fn plans_made_for_a_small_table_hold_for_a_large_one() {
    let postgres = Postgres::fast().unwrap();
    store(&postgres.url()).await;
    let two = "ARRAY['ingest_node', 'ingest_node'], ARRAY[md5('2')::uuid, md5('4')::uuid]";
    let take = format!(
        "SELECT admit.take_each({two}, '{{1,1}}', '{{1,1}}', '{{5,5}}', NULL, 9); {}; {}; SELECT admit.take_one('ingest_node', md5('2')::uuid, 1, 1, 5, NULL, 9);",
        many(two, "{1,1}", "'{2}'", "{1}"),
        many(two, "{1,1}", "NULL", "{1,1}")
    );
    let small = format!("{take} ANALYZE; {} {ROWS_WITHOUT_ANALYZE} {take}", take.repeat(8));
    let plans = plans(&postgres, &small);
    let last = plans.rfind("INSERT INTO admit.rate_budgets\n").unwrap();
    assert!(!reads_all(&plans[last..]), "{}", &plans[last..]);
}

/// Where the statistics told of one row, the only plan that was left had so high a cost that the server compiled it, for 200 ms a
/// take.
#[tokio::test]
async fn no_plan_is_compiled_for_a_table_of_one_row() {
    let postgres = Postgres::fast().unwrap();
    store(&postgres.url()).await;
    let one = "ARRAY['ingest_node'], ARRAY[md5('1')::uuid]";
    let calls = format!(
        "SET jit = on; SET auto_explain.log_analyze = on; \
         SELECT admit.take_one('ingest_node', md5('1')::uuid, 1, 1, 5, NULL, 9); ANALYZE; \
         SELECT admit.take_each({one}, '{{1}}', '{{1}}', '{{5}}', NULL, 9); \
         SELECT admit.take_many({one}, '{{1}}', '{{1}}', '{{5}}', '{{1}}', '{{1}}', '{{1}}', '{{5}}', NULL, '{{1}}', \
         NULL, 9, NULL); \
         SELECT * FROM admit.admit(ARRAY[sha256('')], ARRAY[sha256('')], '{{1}}', '{{1}}', '{{false}}', '{{1}}', {one}, \
         '{{1}}', '{{1}}', '{{5}}', '{{1}}', '{{1}}', '{{1}}', '{{5}}', NULL, '{{1}}', NULL, 9, NULL)"
    );
    let plans = plans(&postgres, &calls);
    assert!(plans.contains("rate_budgets") && !plans.contains("JIT:"), "{plans}");
    let compile = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'admit'::regnamespace \
                   AND proconfig::text LIKE '%enable_%' AND proconfig::text NOT LIKE '%jit=off%'";
    assert_eq!(postgres.psql(compile).unwrap(), "0");
}

const ROWS_WITHOUT_ANALYZE: &str = "
    INSERT INTO admit.rate_budgets
    SELECT 'ingest_node', md5(i::text)::uuid, 1, now() FROM generate_series(10, 20000) AS i;
";

/// The buckets come in lock order, so rows must be found by going through them, not the other way round.
#[tokio::test]
async fn many_buckets_are_locked_in_the_order_in_which_they_are_told() {
    let postgres = Postgres::fast().unwrap();
    store(&postgres.url()).await;
    let two = "ARRAY['ingest_node', 'ingest_node'], ARRAY[md5('2')::uuid, md5('4')::uuid]";
    let each = format!("SELECT admit.take_each({two}, '{{1,1}}', '{{1,1}}', '{{5,5}}', NULL, 9)");
    for rows in ["", ROWS] {
        postgres.psql(&format!("{rows} ANALYZE")).unwrap();
        let plans = plans(&postgres, &each);
        let update = &plans[plans.find("Update on rate_budgets").unwrap()..];
        let at = |what: &str| update.find(what).unwrap_or_else(|| panic!("no {what}: {plans}"));
        let row = at("rate_budgets_pkey");
        assert!(at("Nested Loop") < at("Function Scan on") && at("Function Scan on") < row, "{plans}");
        assert!(!update[..row].contains("Sort") && !reads_all(update), "{plans}");
    }
}
