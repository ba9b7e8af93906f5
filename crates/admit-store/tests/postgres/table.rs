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
    assert!(indexes.contains("(refilled_at)"), "{indexes}");
    assert!(
        indexes.contains("UNIQUE INDEX rate_budgets_pkey") && indexes.contains("(scope, bucket_key)"),
        "{indexes}"
    );

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
