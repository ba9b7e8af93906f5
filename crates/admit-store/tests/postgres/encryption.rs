//! TLS, as `sslmode` in the URL says.

use std::os::unix::fs::{PermissionsExt, chown};
use std::sync::Arc;

use admit_store::postgres::{PostgresConfig, PostgresStore};
use admit_testbed::Postgres;

use crate::{chain, rules};

async fn connect(
    postgres: &Postgres,
    mode: &str,
    tls: Option<rustls::ClientConfig>,
) -> Result<PostgresStore, String> {
    let mut config = PostgresConfig::new(format!("{}?sslmode={mode}", postgres.tcp_url_for("postgres")));
    config.tls = tls;
    PostgresStore::connect(config, rules()).await.map_err(|error| chain(&error))
}

fn encrypted(postgres: &Postgres) -> usize {
    let count = "SELECT count(*) FROM pg_stat_ssl WHERE ssl";
    postgres.psql(count).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_server_without_tls_does_unless_it_is_required() {
    let postgres = Postgres::fast().unwrap();
    connect(&postgres, "disable", None).await.unwrap();
    connect(&postgres, "prefer", None).await.unwrap();
    let error = connect(&postgres, "require", None).await.unwrap_err();
    assert!(error.contains("server does not support TLS"), "{error}");
}

#[tokio::test]
async fn a_certificate_is_checked_where_tls_is_required() {
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, issued.cert.pem()).unwrap();
    std::fs::write(&key, issued.signing_key.serialize_pem()).unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let _ = chown(&key, Some(65_534), Some(65_534)); // The server's user, if this is root.
    let files = [format!("ssl_cert_file={}", cert.display()), format!("ssl_key_file={}", key.display())];
    let postgres = Postgres::with_settings(["fsync=off", "ssl=on", &files[0], &files[1]]).unwrap();

    let store = connect(&postgres, "prefer", None).await.unwrap();
    assert_eq!(encrypted(&postgres), 1);
    drop(store);
    let error = connect(&postgres, "require", None).await.unwrap_err();
    assert!(error.contains("certificate"), "{error}");

    let mut roots = rustls::RootCertStore::empty();
    roots.add(issued.cert.der().clone()).unwrap();
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    connect(&postgres, "require", Some(tls)).await.unwrap();
    connect(&postgres, "disable", None).await.unwrap();
}
