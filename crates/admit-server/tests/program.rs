//! The `admit` program, as a person starts it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod program_place;

use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use admit_server::policy::{Policy, STARTER};
use axum::Router;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use program_place::{Serving, admit, run};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::Notify;

async fn get(address: SocketAddr, path: &str, user: &str) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let request = Request::get(format!("http://{address}{path}")).header("x-user", user);
    let response = client.request(request.body(Body::empty()).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    (status, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
}

async fn get_keyed(address: SocketAddr, path: &str, key: &str) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let request = Request::post(format!("http://{address}{path}")).header("idempotency-key", key);
    let response = client.request(request.body(Body::empty()).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    (status, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
}

async fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, Router::new().fallback(async || "hello")).await });
    url
}

#[tokio::test]
async fn flags_alone_put_it_in_front_of_a_service_and_a_restart_forgets_no_debt() {
    let (directory, upstream) = (tempfile::tempdir().unwrap(), upstream().await);
    let flags = [
        "--upstream",
        &upstream,
        "--limit",
        "3/hour",
        "--limit",
        "2/second burst 50",
        "--by",
        "header:x-user",
    ];
    let serving = Serving::start(&directory, &flags).await;
    for _ in 0..2 {
        assert_eq!(get(serving.address, "/", "ann").await, (200, "hello".to_owned()));
    }
    assert_eq!(get(serving.admin, "/healthz", "").await.0, 200);
    assert_eq!(get(serving.admin, "/readyz", "").await, (200, "ready\n".to_owned()));
    serving.stop().await;

    let serving = Serving::start(&directory, &flags).await;
    assert_eq!(get(serving.address, "/a/b", "ann").await.0, 200);
    let (status, problem) = get(serving.address, "/", "ann").await;
    assert!(status == 429 && problem.contains("3/hour"), "{status} {problem}");
    assert_eq!(get(serving.address, "/", "bob").await.0, 200);
    let (_, metrics) = get(serving.admin, "/metrics", "").await;
    for line in [
        "admit_answers_total{status=\"200\"} 2",
        "admit_answers_total{status=\"429\"} 1",
        "admit_decisions_total{budget=\"limit-1\",mode=\"enforce\",outcome=\"granted\"} 2",
        "admit_decisions_total{budget=\"limit-1\",mode=\"enforce\",outcome=\"refused\"} 1",
        "admit_decisions_total{budget=\"limit-2\",mode=\"enforce\",outcome=\"granted\"} 2",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line} in\n{metrics}");
    }
    assert!(!metrics.contains("ann"), "no key is a label");
    serving.stop().await;
}

#[tokio::test]
async fn a_policy_file_is_checked_and_served() {
    let (directory, upstream) = (tempfile::tempdir().unwrap(), upstream().await);
    let policy = format!(
        "upstream = \"{upstream}\"\nstore = \"memory:\"\n[budgets.x]\nrate = \"1/hour\"\nby = \"ip\"\n\
         [[routes]]\nmatch = \"GET /one\"\nbudgets = [\"x\"]\n"
    );
    std::fs::write(directory.path().join("admit.toml"), &policy).unwrap();
    let (code, said, _) = run(&directory, &["check", "admit.toml"]).await;
    assert_eq!(
        (code, said.as_str()),
        (0, "admit.toml can be used; budgets: 1, routes: 1, descriptors: 0, keys: 0\n")
    );

    let serving = Serving::start(&directory, &["admit.toml"]).await;
    let statuses = [
        get(serving.address, "/one", "").await.0,
        get(serving.address, "/one", "").await.0,
        get(serving.address, "/", "").await.0,
    ];
    assert_eq!(statuses, [200, 429, 200]);
    serving.stop().await;
    assert!(!directory.path().join("admit.db").exists());
}

/// A cost of `body_bytes` was taken for a policy without an upstream, and was 0 for every request that somebody asked about.
#[tokio::test]
async fn a_budget_by_the_body_where_no_body_is_seen_is_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let policy = "[budgets.bytes]\nrate = \"1MiB/second\"\nby = \"ip\"\ncost = \"body_bytes\"\n\
                  [budgets.users]\nrate = \"1/second\"\nby = \"json:/user\"\n\
                  [budgets.plain]\nrate = \"1/second\"\nby = \"ip\"\n\
                  [[routes]]\nmatch = \"POST /upload\"\nbudgets = [\"bytes\", \"users\", \"plain\"]\n";
    std::fs::write(directory.path().join("admit.toml"), policy).unwrap();
    let (code, said, _) = run(&directory, &["check", "admit.toml"]).await;
    let warned: Vec<_> = said.lines().filter(|line| line.starts_with("warning: budget \"")).collect();
    assert!(code == 0 && warned.len() == 2, "{said}");
    assert!(warned[0].contains("\"bytes\" of POST /upload") && warned[1].contains("\"users\""), "{said}");
    let checked = program_place::json(&directory, &["check", "admit.toml"]).await;
    assert_eq!(checked["warnings"].as_array().unwrap().len(), 2);
    let gateway = format!("upstream = \"http://localhost:1\"\n{policy}");
    std::fs::write(directory.path().join("admit.toml"), gateway).unwrap();
    let (code, said, _) = run(&directory, &["check", "admit.toml"]).await;
    assert!(code == 0 && !said.contains("warning"), "{said}");
}

/// The program ended with its connections: a keyed run whose client had gone was cut off at the stop, its key stayed in flight
/// until the lease lapsed, and then it ran a second time. After a reload nobody even knew of it.
#[tokio::test]
async fn a_keyed_run_whose_client_has_gone_is_finished_before_the_program_ends() {
    let (came, go, runs) = (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (tell, wait, counted) = (came.clone(), go.clone(), runs.clone());
    let slow = Router::new().fallback(async move || {
        counted.fetch_add(1, Ordering::SeqCst);
        tell.notify_one();
        wait.notified().await;
        "done"
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, slow).await });
    let directory = tempfile::tempdir().unwrap();
    let policy = format!(
        "upstream = \"http://{upstream}\"\n[budgets.x]\nrate = \"100/hour\"\nby = \"ip\"\n[[routes]]\n\
         match = \"* /pay\"\nbudgets = [\"x\"]\nidempotency = {{ key = \"header\", by = \"ip\" }}\n"
    );
    std::fs::write(directory.path().join("admit.toml"), &policy).unwrap();
    let mut serving = Serving::start(&directory, &["admit.toml"]).await;
    let mut client = TcpStream::connect(serving.address).await.unwrap();
    client
        .write_all(b"POST /pay HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ncontent-length: 0\r\n\r\n")
        .await
        .unwrap();
    came.notified().await;
    drop(client);
    // Another policy comes meanwhile.
    std::fs::write(directory.path().join("admit.toml"), policy.replace("100/hour", "99/hour")).unwrap();
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    while !serving.ask_admin("/metrics").await.1.contains("admit_reloads_total{outcome=\"taken\"} 1") {
        tick.tick().await;
    }
    serving.signal(Signal::TERM);
    while TcpStream::connect(serving.address).await.is_ok() {
        tick.tick().await; // Until it takes no more.
    }
    let early = tokio::time::timeout(Duration::from_secs(1), serving.child.wait()).await;
    assert!(early.is_err(), "it ended before the run did: {early:?}");
    go.notify_one();
    let ended = tokio::time::timeout(Duration::from_secs(30), serving.child.wait()).await;
    assert!(ended.expect("it ends").unwrap().success());

    let serving = Serving::start(&directory, &["admit.toml"]).await;
    let (status, body) = get_keyed(serving.address, "/pay", "k").await;
    assert_eq!((status, body.as_str(), runs.load(Ordering::SeqCst)), (200, "done", 1), "it is replayed");
    serving.stop().await;
}

#[tokio::test]
async fn what_is_wrong_ends_it_with_the_place_and_without_passwords() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("admit.toml"),
        "store = \"postgres://a:s3cret@b/c\"\nup_stream = 1\n",
    )
    .unwrap();
    let met = "listen = \"127.0.0.1:8082\"\nbudgets.x = { rate = \"1/hour\", by = \"ip\" }";
    std::fs::write(directory.path().join("met.toml"), met).unwrap();
    for command in ["check", "serve"] {
        let (code, _, said) = run(&directory, &[command, "admit.toml"]).await;
        assert!(
            code == 1 && said.contains("admit.toml:2:1") && said.contains("did you mean \"upstream\"?"),
            "{said}"
        );
        assert!(!said.contains("s3cret"), "{said}");
    }
    for (arguments, code, expected) in [
        (&["check", "none.toml"][..], 1, "none.toml cannot be read"),
        (&["check", "met.toml"], 1, "cannot both be listened on"),
        (&["serve", "--listen", "[::]:80", "--admin", "127.0.0.1:80"], 1, "cannot both be listened on"),
        (&["serve", "--limit", "1/s", "--by", "nope"], 2, "here it is ip, header:NAME"),
        (&["serve", "--upstream", "localhost:1"], 2, "\"localhost:1\" is no upstream's URL"),
        (&["serve", "--limit", "fast"], 2, "\"fast\" is not a rate"),
        (&["serve", "--limit", "1/s", "--by", "cookie:a"], 2, "\"cookie:a\" is no source that there is"),
        (&["serve", "--limit", "1/s", "admit.toml"], 2, "cannot be used with"),
        (&["serve", "--upstream", "http://a", "--store", "sqlite:/none/admit.db"], 1, "cannot be opened"),
    ] {
        let (found, _, said) = run(&directory, arguments).await;
        assert!(found == code && said.replace("\n  │ ", " ").contains(expected), "{arguments:?}: {said}");
    }
}

/// A URL that was mistyped was repeated whole, and `--help` showed what the environment has.
#[tokio::test]
async fn no_argument_is_repeated_with_its_password() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, store, admin, expected) in [
        (&["serve", "--store", "postgrez://u:s3cret@h"][..], "", "", "no store's URL"),
        (&["serve", "--store", "host=db password=s3cret"], "", "", "no store's URL"),
        (&["migrate"], "postgres:u:s3cret@h", "", "no store's URL"),
        (&["serve"], "postgres://h/x?s3cret=1", "", "percent signs"),
        (&["serve", "--upstream", "http://u:s3cret@h"], "", "", "a user or a password in it"),
        (&["status", "--admin", "http://u:s3cret@h"], "", "", "a user or a password in it"),
        (&["status", "--admin", "http://u:s3cret@h:x y"], "", "", "invalid"),
        (&["status", "--help"], "", "http://u:s3cret@h", "ADMIT_ADMIN"),
    ] {
        let mut command = admit(&directory, arguments);
        for (name, value) in [("ADMIT_STORE", store), ("ADMIT_ADMIN", admin)] {
            if !value.is_empty() {
                command.env(name, value);
            }
        }
        let Output { stdout, stderr, .. } = command.output().await.unwrap();
        let said = String::from_utf8([stdout, stderr].concat()).unwrap();
        assert!(said.replace("\n  │ ", " ").contains(expected), "{arguments:?}: {said}");
        assert!(!said.contains("cret"), "{arguments:?}: {said}");
    }
}

#[tokio::test]
async fn it_prints_what_it_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(run(&directory, &["serve", "--print-default"]).await, (0, STARTER.to_owned(), String::new()));
    assert!(Policy::parse("starter", STARTER).is_ok());
    let (_, key, _) = run(&directory, &["key", "ann"]).await;
    assert_eq!(key.trim(), admit::Key::of("ann").to_string());
    let uuid = "6f8c2a14-6d0b-4c39-9a51-0d4f3d6f2b77";
    assert_eq!(run(&directory, &["key", uuid]).await.1.trim(), uuid);
    assert_ne!(run(&directory, &["key", "--api-key", uuid]).await.1.trim(), uuid);
    let (code, help, _) = run(&directory, &["serve", "--help"]).await;
    assert!(code == 0 && help.contains("--upstream <URL>") && help.contains("--limit <RATE>"), "{help}");
}

#[tokio::test]
async fn both_listeners_are_encrypted_and_what_is_wrong_with_a_file_is_told() {
    let (directory, upstream) = (tempfile::tempdir().unwrap(), upstream().await);
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    write("server.pem", &issued.cert.pem());
    write("server.key", &issued.signing_key.serialize_pem());
    let policy = format!(
        "upstream = \"{upstream}\"\nstore = \"memory:\"\ntls = {{ certificate = \"server.pem\", key = \"server.key\" }}\n\
         admin_tls = {{ certificate = \"server.pem\", key = \"server.key\" }}\n\
         [budgets.x]\nrate = \"1/hour\"\nby = \"ip\"\n"
    );
    write("admit.toml", &policy);
    let serving = Serving::start(&directory, &["admit.toml"]).await;
    let roots = admit_listen::roots(&directory.path().join("server.pem")).unwrap();
    let tls = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into());
    let tls = tls.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let https = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls.with_no_client_auth())
        .https_only()
        .enable_all_versions()
        .build();
    let client = Client::builder(TokioExecutor::new()).build::<_, Body>(https);
    for (address, path) in [(serving.address, "/"), (serving.admin, "/healthz")] {
        let response = client.get(format!("https://{address}{path}").parse().unwrap()).await.unwrap();
        assert_eq!((response.status().as_u16(), response.version()), (200, http::Version::HTTP_2));
    }
    // `admit status` spoke no TLS, so that a program whose admin listener is encrypted could not be asked.
    let url = format!("https://{}", serving.admin);
    let (code, said, error) = run(&directory, &["status", "--admin", &url, "--ca", "server.pem"]).await;
    assert!(code == 0 && said.starts_with("healthy\n"), "{said}{error}");
    serving.stop().await;

    write("admit.toml", &policy.replace("server.key", "server.pem"));
    for command in ["check", "serve"] {
        let (code, _, said) = run(&directory, &[command, "admit.toml"]).await;
        let said = said.replace("\n  │ ", " ").replace("\n      ", " ");
        assert!(code == 1 && said.contains("tls cannot be used"), "{said}");
        assert!(said.contains("server.pem holds no key"), "{said}");
    }
    // `admit check` passed such a policy, and `admit serve` did not start with it.
    write("admit.toml", &policy.replacen("tls =", "upstream_ca = \"server.key\"\ntls =", 1));
    for command in ["check", "serve"] {
        let (code, _, said) = run(&directory, &[command, "admit.toml"]).await;
        assert!(code == 1 && said.contains("upstream_ca cannot be used"), "{said}");
    }
    write("admit.toml", "store = \"memory:\"");
    for command in ["check", "serve"] {
        let (code, _, said) = run(&directory, &[command, "admit.toml"]).await;
        assert!(code == 1 && said.contains("has no budget") && said.contains("budgets.requests ="), "{said}");
    }
}

/// A program that was started with few open files, as shells do, had none left for its upstream when half as many clients
/// were there: it answered 502 as if the upstream were away. And more than 1,024 clients could not be let in at all.
#[tokio::test]
async fn there_are_sockets_for_as_many_connections_as_the_policy_allows() {
    let directory = tempfile::tempdir().unwrap();
    let policy = "store = \"memory:\"\nconnections = 1500\n[budgets.x]\nrate = \"1/hour\"\nby = \"ip\"\n";
    std::fs::write(directory.path().join("admit.toml"), policy).unwrap();
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let serving = Serving::start(&directory, &["admit.toml"]).await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", serving.child.id().unwrap())).unwrap();
    let open_files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let allowed: u64 = open_files.split_whitespace().next().unwrap().parse().unwrap_or(u64::MAX);
    assert!(allowed >= own.maximum.unwrap_or(u64::MAX).min(2 * 1500), "{open_files}");
    serving.stop().await;
}

/// SIGHUP was received only some time after the program had said that it listens; one before that ended it.
#[tokio::test]
async fn a_hangup_reloads_and_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let policy = "store = \"memory:\"\n[budgets.x]\nrate = \"1/hour\"\nby = \"ip\"\n";
    std::fs::write(directory.path().join("admit.toml"), policy).unwrap();
    let serving = Serving::start(&directory, &["admit.toml"]).await;
    serving.signal(Signal::HUP);
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    let reloaded = async {
        while !get(serving.admin, "/metrics", "")
            .await
            .1
            .contains("admit_reloads_total{outcome=\"unchanged\"} 1")
        {
            tick.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reloaded).await.expect("it reloads");
    serving.stop().await;
}

/// The lines that a newcomer is given to try do what stands beside them.
#[tokio::test]
async fn with_no_file_it_says_where_it_listens_and_its_lines_to_try_work() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = admit(&directory, &["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = String::new();
    while !said.contains("Ctrl-C") {
        said +=
            &(lines.next_line().await.unwrap().unwrap_or_else(|| panic!("it did not start: {said}")) + "\n");
    }
    assert!(said.contains("  policy    the starter policy\n  store     sqlite:admit.db\n"), "{said}");
    assert!(!said.contains('\x1b'), "no colours in a pipe");
    let tries: Vec<&str> = said.lines().filter(|line| line.starts_with("  curl ")).collect();
    let mut answers = Vec::new();
    for line in &tries {
        let Output { status, stdout, .. } = Command::new("sh").args(["-c", line]).output().await.unwrap();
        assert!(status.success(), "{line}");
        answers.push(String::from_utf8(stdout).unwrap());
    }
    let [first, many, decided] = answers.as_slice() else { panic!("{said}") };
    assert!(
        first.starts_with("HTTP/1.1 200 OK") && first.to_lowercase().contains("\nratelimit: "),
        "{first}"
    );
    assert!(many.starts_with("200 200 ") && many.ends_with(" 429 429 "), "{many}");
    assert!(decided.contains("budget=\"burst\",mode=\"enforce\",outcome=\"refused\""), "{decided}");
    assert!(directory.path().join("admit.db").exists());
}

/// `--by api_key` answered every request with 401, and `--by entry:user` had all callers share one bucket: neither has
/// anything to go by where there is no policy file.
#[tokio::test]
async fn flags_name_only_what_a_request_has_without_a_policy() {
    let directory = tempfile::tempdir().unwrap();
    for by in ["api_key", "tenant", "entry:user", "path:project", "json:/user"] {
        let (code, _, said) = run(&directory, &["serve", "--limit", "1/hour", "--by", by]).await;
        assert!(code == 2 && said.contains("takes a policy file"), "{said}");
    }
}

/// A second start made or changed the store's tables before it found its port taken.
#[tokio::test]
async fn a_port_that_is_taken_is_told_before_the_store_is_touched() {
    let directory = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, said) = run(&directory, &["serve", "--listen", &address]).await;
    assert!(code == 1 && said.contains("name another with --listen"), "{said}");
    assert!(!directory.path().join("admit.db").exists());
}
