//! The tables are made once, by any number of replicas.

use admit::{BudgetStore, Now, Rules, Scope};
use admit_store::postgres::{ConnectError, PostgresConfig, PostgresStore};
use admit_testbed::{PgBouncer, Postgres};
use futures::future::join_all;

use crate::{INGEST, chain, charge, rules, session, store};

fn with_scopes(names: &[&'static str]) -> Rules {
    Rules::new(names.iter().map(|name| Scope::from_static(name))).unwrap()
}

const CHECK: &str = "SELECT pg_get_constraintdef(oid), convalidated FROM pg_constraint \
                     WHERE conname = 'rate_budgets_scope_check'";

#[tokio::test(flavor = "multi_thread")]
async fn eight_replicas_on_a_fresh_database() {
    let postgres = Postgres::fast().unwrap();
    let pooler = PgBouncer::start(&postgres).unwrap();
    for (database, url) in [("direct", postgres.url_for("direct")), ("pooled", pooler.url_for("pooled"))] {
        postgres.psql(&format!("CREATE DATABASE {database}")).unwrap();
        let names: Vec<&'static str> = vec!["a", "b", "c", "d", "e", "f", "g", "h"];
        let replicas = names.chunks(1).map(|names| {
            let mut config = PostgresConfig::new(&url);
            config.schema = "plexsphere".parse().unwrap();
            tokio::spawn(PostgresStore::connect(config, with_scopes(names)))
        });
        for replica in join_all(replicas).await {
            replica.unwrap().unwrap_or_else(|error| panic!("{}", chain(&error)));
        }
        let check = postgres.psql_in(database, CHECK).unwrap();
        assert!(names.iter().all(|name| check.contains(&format!("'{name}'::text"))), "{check}");
        assert!(check.ends_with("|t"), "{check}");
    }
}

#[tokio::test]
async fn a_restart_changes_nothing_and_a_new_scope_extends_the_check() {
    let postgres = Postgres::fast().unwrap();
    let connect = |rules| PostgresStore::connect(PostgresConfig::new(postgres.url()), rules);
    connect(with_scopes(&["a", "b"])).await.unwrap();
    let unlisted = postgres.psql("INSERT INTO admit.rate_budgets VALUES ('c', gen_random_uuid(), 1, now())");
    assert!(unlisted.unwrap_err().to_string().contains("rate_budgets_scope_check"));

    let xid = || postgres.psql("SELECT pg_snapshot_xmax(pg_current_snapshot())").unwrap();
    let before = xid();
    connect(with_scopes(&["b"])).await.unwrap();
    assert_eq!(xid(), before, "a restart that changes nothing writes nothing");
    connect(with_scopes(&["c"])).await.unwrap();
    let check = postgres.psql(CHECK).unwrap();
    assert_eq!(check, "CHECK ((scope = ANY (ARRAY['a'::text, 'b'::text, 'c'::text])))|t");
}

/// A replica with a new scope waited for the table behind a long transaction, and all takes of all replicas waited
/// behind that: none was answered until the transaction was over.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_waits_for_the_table_holds_up_no_take() {
    let postgres = Postgres::fast().unwrap();
    let old = store(&postgres.url()).await;
    let reader = session(&postgres).await;
    reader.batch_execute("BEGIN; SELECT FROM admit.rate_budgets").await.unwrap();
    let config = PostgresConfig::new(postgres.url());
    let new = tokio::spawn(PostgresStore::connect(config, with_scopes(&["ingest_node", "new"])));
    for _ in 0..3 {
        while postgres.psql("SELECT count(*) FROM pg_locks WHERE NOT granted").unwrap() == "0" {
            tokio::task::yield_now().await;
        }
        let take = old.take(&[charge(INGEST, "k", 1.0, "1000/s")], Now::Store).await;
        assert!(take.unwrap_or_else(|error| panic!("{}", chain(&error))).is_granted());
    }
    assert!(!new.is_finished());
    reader.batch_execute("COMMIT").await.unwrap();
    new.await.unwrap().unwrap();
    assert!(postgres.psql(CHECK).unwrap().contains("'new'::text"));
}

#[tokio::test]
async fn a_role_without_rights_is_told_what_it_lacks_and_needs_none_when_all_is_there() {
    let postgres = Postgres::fast().unwrap();
    postgres.psql("CREATE ROLE app LOGIN").unwrap();
    let url = postgres.url().replace("postgres@", "app@");
    let connect = || PostgresStore::connect(PostgresConfig::new(&url), rules());
    let error = connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Privilege { .. }), "{error:?}");
    let text = chain(&error);
    assert!(text.contains("CREATE on the database") && text.contains("permission denied"), "{text}");

    let mut config = PostgresConfig::new(postgres.url());
    config.migrate = false;
    let error = PostgresStore::connect(config, rules()).await.unwrap_err().to_string();
    assert!(error.contains("lacks migration V1__rate_budgets; "), "{error}");

    store(&postgres.url()).await;
    postgres
        .psql(
            "GRANT USAGE ON SCHEMA admit TO app; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA admit TO app; \
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA admit TO app",
        )
        .unwrap();
    let store = connect().await.unwrap();
    assert!(store.take(&[charge(INGEST, "k", 1.0, "1/s")], Now::Store).await.unwrap().is_granted());
}

#[tokio::test(flavor = "multi_thread")]
async fn any_default_isolation_of_the_server_will_do() {
    let postgres = Postgres::fast().unwrap();
    for isolation in ["repeatable read", "serializable"] {
        postgres.psql("DROP SCHEMA IF EXISTS admit CASCADE").unwrap();
        postgres
            .psql(&format!("ALTER DATABASE postgres SET default_transaction_isolation = '{isolation}'"))
            .unwrap();
        let store = store(&postgres.url()).await;
        let takes = (0..200).map(|_| {
            let store = store.clone();
            let charges = [charge(INGEST, "hot", 1.0, "70/h"), charge(crate::READ, "hot", 1.0, "90/h")];
            tokio::spawn(async move { store.take(&charges, Now::Store).await.unwrap().is_granted() })
        });
        let granted = join_all(takes).await.into_iter().filter(|granted| *granted.as_ref().unwrap()).count();
        assert_eq!(granted, 70, "{isolation}");
        store.refund(&[charge(INGEST, "hot", 1.0, "70/h")]).await.unwrap();
        store.delete_idle(Now::Store).await.unwrap();
    }
}
