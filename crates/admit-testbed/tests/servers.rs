//! The test servers themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use admit_testbed::{Daemon, Home, PgBouncer, Postgres, Shutdown};
use rustix::process::{Pid, test_kill_process};

#[test]
fn a_server_answers_keeps_its_data_and_goes_with_its_handle() {
    let postgres = Postgres::start().unwrap();
    assert_eq!(postgres.psql("SHOW fsync").unwrap(), "on");
    postgres.psql("CREATE TABLE t AS SELECT 7 AS n").unwrap();
    for shutdown in [Shutdown::Fast, Shutdown::Immediate] {
        postgres.stop(shutdown).unwrap();
        assert!(postgres.psql("SELECT n FROM t").is_err());
        postgres.start_again().unwrap();
        assert_eq!(postgres.psql("SELECT n FROM t").unwrap(), "7");
    }
    let error = postgres.psql("SELECT 1; SELECT nothing; SELECT 3").unwrap_err().to_string();
    assert!(error.contains("column \"nothing\" does not exist"), "{error}");
    let home = postgres.home().path().to_owned();
    drop(postgres);
    assert!(!home.exists());
}

#[test]
fn a_paused_server_is_silent_until_it_goes_on() {
    let postgres = Postgres::fast().unwrap();
    postgres.pause().unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", postgres.port())).unwrap(); // The kernel still takes it.
    client.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).unwrap(); // SSLRequest; the answer is one byte.
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(client.read(&mut [0]).is_err());
    client.set_read_timeout(None).unwrap();
    postgres.resume().unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 1);
    assert_eq!(postgres.psql("SELECT 1").unwrap(), "1");
    postgres.pause().unwrap(); // A paused server goes with its handle, too.
}

#[test]
fn a_pooler_passes_statements_on() {
    let postgres = Postgres::fast().unwrap();
    let pooler = PgBouncer::start(&postgres).unwrap();
    assert_eq!(postgres.psql_at(&pooler.url_for("postgres"), "SELECT 40 + 2").unwrap(), "42");
}

/// A killed test once left its server and its directory behind.
#[test]
fn a_server_does_not_outlive_a_killed_test() {
    if std::env::var_os("TESTBED_CHILD").is_some() {
        let postgres = Postgres::fast().unwrap();
        postgres.pause().unwrap();
        println!("HOME {}", postgres.home().path().display());
        loop {
            std::thread::park();
        }
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_server_does_not_outlive_a_killed_test", "--nocapture"])
        .env("TESTBED_CHILD", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let home = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("HOME ").map(|(_, home)| PathBuf::from(home)))
        .unwrap();
    let postmaster = std::fs::read_to_string(home.join("data/postmaster.pid")).unwrap();
    let postmaster: i32 = postmaster.lines().next().unwrap().parse().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let is_there = || test_kill_process(Pid::from_raw(postmaster).unwrap()).is_ok();
    while is_there() && !is_zombie(postmaster) || home.exists() {
        std::thread::yield_now(); // The test runner bounds this.
    }
}

/// Whether the process only waits for its new parent to notice its end.
fn is_zombie(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

/// A command that a shell had put into the background ignored SIGQUIT, and so did all that it started: whoever dropped a server
/// that does not catch that signal waited for ever.
#[test]
fn a_server_that_ignores_the_signal_is_killed() {
    let home = Home::new("deaf").unwrap();
    let mut deaf = home.command("sh");
    deaf.args(["-c", "trap '' QUIT; echo ready >&2; exec tail -f /dev/null"]);
    let server = Daemon::start(&home, deaf, "ready").unwrap();
    let pid = Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap();
    drop(server);
    assert!(test_kill_process(pid).is_err(), "it is gone");
}
