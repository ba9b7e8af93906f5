//! Encrypted listeners, and certificates that are exchanged while they serve.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod served;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use admit_listen::{Encrypted, Limits, Tls, TlsError, TlsFiles};
use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ClientConfig;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use served::{SOON, Served};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A root, and what it signs.
struct Root(Issuer<'static, KeyPair>, String);

impl Root {
    fn new() -> Self {
        let (mut params, key) = (CertificateParams::new([]).unwrap(), KeyPair::generate().unwrap());
        params.distinguished_name.push(DnType::CommonName, "the root"); // OpenSSL wants another than the server's.
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self(Issuer::new(params, key), pem)
    }

    /// A certificate and its key, in files of `directory` and as a client presents them.
    fn signs(&self, directory: &Path, name: &str) -> (TlsFiles, rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let file = |kind: &str, pem: String| {
            let file = directory.join(format!("{name}-{kind}.pem"));
            fs::write(&file, pem).unwrap();
            file
        };
        let files = TlsFiles {
            certificate: file("certificate", certificate.pem()),
            key: file("key", key.serialize_pem()),
            client_ca: None,
        };
        (files, certificate, key)
    }
}

fn client(roots: &Path, alpn: &[&[u8]], own: Option<(rcgen::Certificate, KeyPair)>) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(admit_listen::roots(roots).unwrap());
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
            builder.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
        }
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config
}

async fn connect(served: &Served, client: ClientConfig) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(served.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(client)).connect(name, stream).await
}

/// The answer of HTTP/1.1.
async fn answer(served: &Served, client: ClientConfig) -> io::Result<String> {
    let mut stream = connect(served, client).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Tells whether it is asked over an encrypted connection, and in which version.
fn tells() -> Router {
    Router::new().route(
        "/",
        get(async |request: Request| {
            format!("{:?} {}", request.version(), request.extensions().get::<Encrypted>().is_some())
        }),
    )
}

struct Place {
    directory: TempDir,
    root: Root,
    ca: std::path::PathBuf,
}

fn place() -> Place {
    let (directory, root) = (tempfile::tempdir().unwrap(), Root::new());
    let ca = directory.path().join("ca.pem");
    fs::write(&ca, &root.1).unwrap();
    Place { directory, root, ca }
}

#[tokio::test]
async fn a_client_gets_the_protocol_that_it_asks_for() {
    let place = place();
    let (files, ..) = place.root.signs(place.directory.path(), "server");
    let served = Served::start_tls(tells(), Some(Tls::load(&files).unwrap()), Limits::default()).await;
    for alpn in [&[][..], &[&b"http/1.1"[..]]] {
        let answer = answer(&served, client(&place.ca, alpn, None)).await.unwrap();
        assert!(answer.ends_with("HTTP/1.1 true"), "{answer}");
    }
    let stream = connect(&served, client(&place.ca, &[b"http/1.1", b"h2"], None)).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    drop(stream);
    let url = format!("https://localhost:{}/", served.address.port());
    let arguments = ["-sS", "--http2", "--cacert", place.ca.to_str().unwrap(), &url];
    match tokio::process::Command::new("curl").args(arguments).output().await {
        Ok(curl) => assert_eq!(String::from_utf8(curl.stdout).unwrap(), "HTTP/2.0 true"),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound, "there is curl"),
    }
    // Nothing is served in the clear.
    assert!(!served.answer("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.contains("HTTP"));
    served.stop().await;
}

#[tokio::test]
async fn where_clients_need_certificates_only_those_of_the_root_are_served() {
    let (place, strange) = (place(), place());
    let (mut files, ..) = place.root.signs(place.directory.path(), "server");
    files.client_ca = Some(place.ca.clone());
    let served = Served::start_tls(tells(), Some(Tls::load(&files).unwrap()), Limits::default()).await;
    let (_, certificate, key) = place.root.signs(place.directory.path(), "client");
    answer(&served, client(&place.ca, &[], Some((certificate, key)))).await.unwrap();
    answer(&served, client(&place.ca, &[], None)).await.unwrap_err();
    let (_, certificate, key) = strange.root.signs(strange.directory.path(), "client");
    answer(&served, client(&place.ca, &[], Some((certificate, key)))).await.unwrap_err();
    served.stop().await;
}

#[tokio::test]
async fn new_certificates_hold_for_new_connections_and_bad_ones_change_nothing() {
    let (old, new) = (place(), place());
    let (files, ..) = old.root.signs(old.directory.path(), "server");
    let tls = Tls::load(&files).unwrap();
    let served = Served::start_tls(tells(), Some(tls.clone()), Limits::default()).await;
    let trusts = async |place: &Place| answer(&served, client(&place.ca, &[], None)).await.is_ok();
    assert_eq!((trusts(&old).await, trusts(&new).await), (true, false));

    let (others, ..) = new.root.signs(new.directory.path(), "server");
    let mixed = TlsFiles { key: others.key.clone(), ..files.clone() };
    assert!(matches!(tls.reload(&mixed), Err(TlsError::Unusable { .. })));
    assert_eq!((trusts(&old).await, trusts(&new).await), (true, false));

    let mut open = connect(&served, client(&old.ca, &[], None)).await.unwrap();
    tls.reload(&others).unwrap();
    assert_eq!((trusts(&old).await, trusts(&new).await), (false, true));
    open.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    open.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("true"), "{answer}");
    served.stop().await;
}

#[tokio::test]
async fn a_handshake_that_does_not_end_is_not_waited_for_and_holds_up_no_other() {
    let place = place();
    let (files, ..) = place.root.signs(place.directory.path(), "server");
    let limits = Limits { head_time: SOON, ..Limits::default() };
    let served = Served::start_tls(tells(), Some(Tls::load(&files).unwrap()), limits).await;
    let silent = served.send("").await;
    let begun = served.send([22, 3, 1, 2, 0, 1]).await; // The first bytes of a ClientHello.
    answer(&served, client(&place.ca, &[], None)).await.unwrap();
    for mut stream in [silent, begun] {
        let _ = stream.read_to_end(&mut Vec::new()).await; // A reset ends it as well.
    }
    served.stop().await;
}

#[test]
fn what_is_wrong_with_a_file_is_told_with_its_name_and_without_what_it_holds() {
    let place = place();
    let (files, _, key) = place.root.signs(place.directory.path(), "server");
    let at = |name: &str, content: &str| {
        let file = place.directory.path().join(name);
        fs::write(&file, content).unwrap();
        file
    };
    let key_pem = key.serialize_pem();
    let cut = at("cut.pem", &key_pem[..key_pem.len() - 10]);
    let empty = at("empty.pem", "");
    let large = at("large.pem", &"x".repeat((1 << 20) + 1));
    let none = place.directory.path().join("none.pem");
    for (files, expected) in [
        (TlsFiles { certificate: none, ..files.clone() }, "none.pem cannot be read"),
        (TlsFiles { certificate: large, ..files.clone() }, "large.pem is larger than"),
        (TlsFiles { certificate: empty.clone(), ..files.clone() }, "empty.pem holds no certificate"),
        (TlsFiles { key: empty.clone(), ..files.clone() }, "empty.pem holds no key"),
        (TlsFiles { key: cut, ..files.clone() }, "cut.pem is not PEM"),
        (TlsFiles { client_ca: Some(empty), ..files.clone() }, "empty.pem holds no certificate"),
    ] {
        let error = Tls::load(&files).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!format!("{error:?}").contains(key_pem.lines().nth(1).unwrap()), "{error:?}");
    }
    let tls = Tls::load(&files).unwrap();
    assert_eq!(format!("{tls:?}"), "Tls { .. }");
}
