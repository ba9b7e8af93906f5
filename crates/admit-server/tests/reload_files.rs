//! The files beside a policy, changed while it is in force: certificates, roots, and what is no file at all.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reload_place;
mod served;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use admit_listen::{Tls, TlsFiles};
use axum::body::Body;
use http::{Request, StatusCode};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use reload_place::{Place, budget};
use rustls::ClientConfig;
use served::Server;

/// A certificate for the loopback address, which is its own root, and its key.
fn issued() -> (String, String) {
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    (issued.cert.pem(), issued.signing_key.serialize_pem())
}

/// Whether a client that knows this root alone is served.
async fn is_served(server: &Server, root: &str) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("root.pem");
    std::fs::write(&file, root).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(admit_listen::roots(&file).unwrap()).with_no_client_auth();
    let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1().build();
    let client = Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let request = Request::get(format!("https://{}/authorize", server.address)).body(Body::empty()).unwrap();
    client.request(request).await.is_ok()
}

#[tokio::test]
async fn a_changed_certificate_is_taken_and_a_broken_one_keeps_the_one_before() {
    let ((one, one_key), (two, two_key)) = (issued(), issued());
    let tls = "tls = { certificate = \"server.pem\", key = \"server.key\" }\n";
    let members = format!("{tls}{}", budget("1000/second"));
    let files = [("server.pem", one.as_str()), ("server.key", one_key.as_str())];
    let place = Place::with_files("memory:", &members, &files).await;
    let server = Server::start_tls(place.running.answers(), place.running.certificates().main.clone()).await;
    assert!(is_served(&server, &one).await && !is_served(&server, &two).await);

    // One file after the other: between the two they do not go together, and what was before stays.
    place.write("server.pem", &two);
    place.running.reload().await.unwrap_err();
    assert!(is_served(&server, &one).await);
    place.write("server.key", &two_key);
    place.running.reload().await.unwrap();
    assert!(is_served(&server, &two).await && !is_served(&server, &one).await);

    place.write("server.pem", "-----BEGIN CERTIFICATE-----\nhalf of");
    let told = place.running.reload().await.unwrap_err().to_string();
    assert!(told.contains("server.pem is not PEM"), "{told}");
    assert!(is_served(&server, &two).await && place.running.not_in_force().is_some());
    place.write("server.pem", &two);
    assert!(place.running.reload().await.is_ok() && place.running.not_in_force().is_none());
}

#[tokio::test]
async fn changed_roots_of_an_upstream_are_taken_and_broken_ones_keep_those_before() {
    let ((own, key), (other, _)) = (issued(), issued());
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(directory.path().join(name), text).unwrap();
        directory.path().join(name)
    };
    let files = TlsFiles { certificate: file("a.pem", &own), key: file("a.key", &key), client_ca: None };
    let router = axum::Router::new().fallback(async || "hello");
    let upstream = Server::start_tls(router, Some(Tls::load(&files).unwrap())).await;
    let members = format!(
        "upstream = \"https://{}\"\nupstream_ca = \"ca.pem\"\n{}",
        upstream.address,
        budget("1000/second")
    );
    let place = Place::with_files("memory:", &members, &[("ca.pem", &other)]).await;
    assert_eq!(place.server.get("/").await.unwrap(), StatusCode::BAD_GATEWAY);
    place.write("ca.pem", &own);
    place.running.reload().await.unwrap();
    assert_eq!(place.server.get("/").await.unwrap(), StatusCode::OK);
    place.write("ca.pem", "no roots");
    let told = place.running.reload().await.unwrap_err().to_string();
    assert!(told.contains("ca.pem holds no certificate"), "{told}");
    assert_eq!(place.server.get("/").await.unwrap(), StatusCode::OK);
}

/// A listener cannot change its kind, which was told as if the files were wrong.
#[tokio::test]
async fn a_listener_that_is_to_be_encrypted_takes_a_restart() {
    let place = Place::start("memory:", &budget("2/hour")).await;
    for member in ["tls", "admin_tls"] {
        let tls = format!("{member} = {{ certificate = \"none.pem\", key = \"none.key\" }}\n");
        place.write("admit.toml", &place.policy(&(tls + &budget("2/hour"))));
        let told = place.running.reload().await.unwrap_err().to_string();
        let wanted = format!(
            "{member} cannot change while the program runs (it is in the clear, and encrypted in the file)"
        );
        let told = told.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        assert!(told.contains(&wanted), "{told}");
    }
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A reload waited for the other end of a pipe for ever, and no reload came after it.
#[tokio::test]
async fn what_is_no_file_is_refused_and_does_not_stop_reloads() {
    let place = Place::start("memory:", &budget("2/hour")).await;
    for make in [make_pipe, |path: &Path| std::fs::create_dir(path).unwrap()] {
        let file = place.file("admit.toml");
        std::fs::remove_file(&file).unwrap();
        make(&file);
        let told = place.running.reload().await.unwrap_err().to_string();
        assert!(told.contains("admit.toml is no regular file"), "{told}");
        std::fs::remove_file(&file).or_else(|_| std::fs::remove_dir(&file)).unwrap();
        place.write("admit.toml", &place.policy(&budget("2/hour")));
        place.running.reload().await.unwrap();
    }
    make_pipe(&place.file("server.pem"));
    let tls = "upstream = \"https://127.0.0.1:1\"\nupstream_ca = \"server.pem\"\n".to_owned();
    place.write("admit.toml", &place.policy(&(tls + &budget("2/hour"))));
    let told = place.running.reload().await.unwrap_err().to_string();
    assert!(told.contains("server.pem is no regular file"), "{told}");
    assert_eq!(place.granted(5).await, 2);
}
