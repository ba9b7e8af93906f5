//! The table of buckets, as an operator sees it.

use admit_testbed::Postgres;

use crate::{INGEST, store};

#[tokio::test]
async fn the_table_is_as_documented() {
    let postgres = Postgres::fast().unwrap();
    store(&postgres.url()).await;

    let columns = "SELECT column_name, data_type, is_nullable FROM information_schema.columns
        WHERE table_schema = 'admit' AND table_name = 'rate_budgets' ORDER BY ordinal_position";
    assert_eq!(
        postgres.psql(columns).unwrap(),
        "scope|text|NO\nbucket_key|uuid|NO\ntokens|double precision|NO\nrefilled_at|timestamp with time zone|NO",
        "a budget is no column"
    );

    let keys = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'admit' AND tablename = 'rate_budgets' ORDER BY 1";
    let indexes = postgres.psql(keys).unwrap();
    assert!(
        indexes.contains("UNIQUE INDEX rate_budgets_pkey") && indexes.contains("(scope, bucket_key)"),
        "{indexes}"
    );
    assert_eq!(indexes.lines().count(), 1, "one more that every take would have to change: {indexes}");

    let foreign = "SELECT count(*) FROM pg_constraint WHERE conrelid = 'admit.rate_budgets'::regclass AND contype = 'f'";
    assert_eq!(postgres.psql(foreign).unwrap(), "0", "a bucket is no record of its caller");

    let insert = |scope: &str, tokens: &str| {
        postgres.psql(&format!(
            "INSERT INTO admit.rate_budgets VALUES ('{scope}', gen_random_uuid(), {tokens}, now())"
        ))
    };
    insert(INGEST.as_str(), "0").unwrap();
    let negative = insert(INGEST.as_str(), "-1").unwrap_err();
    assert!(format!("{negative:#}").contains("rate_budgets_tokens_check"), "{negative:#}");
    let unknown = insert("a_sixth", "1").unwrap_err();
    assert!(format!("{unknown:#}").contains("violates check constraint"), "{unknown:#}");
}

/// NaN is above every number to PostgreSQL, and infinity is a time: a row with one would have granted without end, or
/// answered no take any more.
#[tokio::test]
async fn no_row_holds_what_no_store_writes() {
    let postgres = Postgres::fast().unwrap();
    store(&postgres.url()).await;
    let refuses = |sql: &str, constraint: &str| {
        let error = format!("{:#}", postgres.psql(sql).expect_err(sql));
        assert!(error.contains(constraint), "{sql}: {error}");
    };
    let insert = "INSERT INTO admit.rate_budgets VALUES ('ingest_node', gen_random_uuid(), 1, now())";
    postgres.psql(insert).unwrap();
    for tokens in ["-1", "'-Infinity'", "'Infinity'", "'NaN'"] {
        let insert = format!(
            "INSERT INTO admit.rate_budgets VALUES ('ingest_node', gen_random_uuid(), {tokens}, now())"
        );
        refuses(&insert, "rate_budgets_tokens_check");
        refuses(&format!("UPDATE admit.rate_budgets SET tokens = {tokens}"), "rate_budgets_tokens_check");
    }
    let moments = ["infinity", "-infinity", "1969-12-31 23:59:59.999999Z", "10000-01-01Z"];
    for moment in moments {
        let insert = format!(
            "INSERT INTO admit.rate_budgets VALUES ('ingest_node', gen_random_uuid(), 1, '{moment}')"
        );
        refuses(&insert, "rate_budgets_refilled_at_check");
        let update = format!("UPDATE admit.rate_budgets SET refilled_at = '{moment}'");
        refuses(&update, "rate_budgets_refilled_at_check");
    }
    for bound in ["1970-01-01Z", "9999-12-31 23:59:59.999999Z"] {
        postgres.psql(&format!("UPDATE admit.rate_budgets SET refilled_at = '{bound}'")).unwrap();
    }

    let record = "INSERT INTO admit.idempotency_records (record_key, fingerprint, fence, lease_until, expires_at) \
                  VALUES (sha256('1'), sha256(''), 1, now(), now())";
    postgres.psql(record).unwrap();
    for moment in moments {
        for column in ["lease_until", "expires_at"] {
            let update = format!("UPDATE admit.idempotency_records SET {column} = '{moment}'");
            refuses(&update, "idempotency_records_times_check");
        }
    }
    postgres.psql("INSERT INTO admit.leaderships VALUES ('sweep', 'a', 1, now())").unwrap();
    for moment in moments {
        let update = format!("UPDATE admit.leaderships SET lease_until = '{moment}'");
        refuses(&update, "leaderships_lease_until_check");
    }
    for (set, constraint) in [
        ("status = 200", "idempotency_records_state_check"),
        ("lease_until = NULL", "idempotency_records_state_check"),
        ("lease_until = NULL, status = -1", "idempotency_records_status_check"),
        ("lease_until = NULL, status = 65536", "idempotency_records_status_check"),
        ("lease_until = NULL, status = 200, body = ''", "idempotency_records_response_check"),
        ("header_names = '{}', header_values = '{}', body = ''", "idempotency_records_response_check"),
        (
            "lease_until = NULL, status = 200, header_names = '{etag}', header_values = '{}', body = ''",
            "idempotency_records_headers_check",
        ),
    ] {
        refuses(&format!("UPDATE admit.idempotency_records SET {set}"), constraint);
    }
}
