//! Several processes on one file, and processes that are killed.
//!
//! The other processes are this test program again, told by a variable which file to work on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(all(feature = "sqlite", feature = "leases", unix))]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use admit::{BudgetStore, Charge, Decision, Key, Now, Rules, Scope, SystemClock, Timestamp};
use admit_store::leases::{Leased, Leases};
use admit_store::sqlite::{Settings, SqliteStore};
use tokio::task::JoinSet;

const A: Scope = Scope::from_static("a");
const FILE: &str = "ADMIT_TEST_FILE";
const TAKES: &str = "ADMIT_TEST_TAKES";
/// What the other process writes for each take that was granted.
const GRANTED: &str = "granted";
const CALLERS: usize = 8;

/// How a process asks the file.
#[derive(Clone, Copy)]
struct Mode {
    /// How many refusals it remembers.
    refusals: usize,
    /// How much it debits ahead, in percent of the burst.
    leased: usize,
}

const MODES: [Mode; 4] = [
    Mode { refusals: 16_384, leased: 0 },
    Mode { refusals: 0, leased: 0 },
    Mode { refusals: 16_384, leased: 1 },
    Mode { refusals: 0, leased: 1 },
];

fn rules() -> Rules {
    Rules::new([A]).unwrap()
}

/// All takes are at one instant, so nothing refills.
async fn take(store: &impl BudgetStore, burst: usize) -> Decision {
    let budget = format!("{burst}/hour").parse().unwrap();
    store.take(&[Charge::one(A, Key::hashed("hot"), budget)], Now::At(Timestamp::MIN)).await.unwrap()
}

/// The bound of the child: dropped with the test, whatever becomes of it.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(path: &Path, takes: usize, burst: usize, mode: Mode) -> Process {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--ignored", "--nocapture"])
        .env(FILE, path)
        .env(TAKES, format!("{takes} {burst} {} {}", mode.refusals, mode.leased))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Process(child)
}

fn grants(process: &mut Process) -> impl Iterator<Item = ()> + use<> {
    let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    lines.map_while(Result::ok).filter(|line| line == GRANTED).map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "no test: a process that the tests of this file start"]
async fn the_other_process() {
    let [path, takes] = [FILE, TAKES].map(|name| std::env::var(name).expect("started by a test"));
    let numbers: Vec<usize> = takes.split(' ').map(|number| number.parse().unwrap()).collect();
    let [takes, burst, refusals, leased] = numbers[..] else { panic!("{takes}") };
    let settings = Settings { refusals, ..Settings::default() };
    let store = SqliteStore::open_with(path, rules(), settings, SystemClock).await.unwrap();
    match leased {
        0 => take_all(store, takes, burst).await,
        percent => {
            let leases = Leases::new([(A, format!("{percent}%").parse().unwrap())]);
            take_all(Leased::new(store, leases), takes, burst).await;
        }
    }
}

async fn take_all(store: impl BudgetStore + 'static, takes: usize, burst: usize) {
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let store = store.clone();
        callers.spawn(async move {
            for _ in 0..takes / CALLERS {
                if take(&store, burst).await.is_granted() {
                    std::io::stdout().write_all(format!("\n{GRANTED}\n").as_bytes()).unwrap();
                }
            }
        });
    }
    callers.join_all().await;
}

#[tokio::test]
async fn processes_on_one_file_grant_exactly_what_is_there() {
    const BURST: usize = 500;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    // They make the file, and bring its schema up to date, at once.
    let mut processes: Vec<_> = (0..4).map(|i| spawn(&path, 200, BURST, MODES[i % 2])).collect();
    let readers: Vec<_> = processes
        .iter_mut()
        .map(|process| {
            let grants = grants(process);
            std::thread::spawn(move || grants.count())
        })
        .collect();
    let granted: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    for process in &mut processes {
        assert!(process.0.wait().unwrap().success());
    }
    assert_eq!(granted, BURST, "800 takes on {BURST} tokens");
    let store = SqliteStore::open(&path, rules()).await.unwrap();
    assert!(!take(&store, BURST).await.is_granted());
}

#[tokio::test]
async fn a_crash_forgets_no_debit_that_was_answered() {
    const BURST: usize = 1_000_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admit.db");
    let (mut answered, mut lapsed) = (0, 0);
    for round in 1..=8 {
        let mode = MODES[round % MODES.len()];
        let mut process = spawn(&path, BURST, BURST, mode);
        let mut grants = grants(&mut process);
        answered += grants.by_ref().take(37 * round).count();
        process.0.kill().unwrap(); // SIGKILL
        answered += grants.count(); // What it had written before.
        let store = SqliteStore::open(&path, rules()).await.unwrap();
        let Decision::Granted(grant) = take(&store, BURST).await else { panic!("the bucket is large") };
        answered += 1;
        let debited = BURST - grant.left[0].unwrap() as usize;
        assert!(debited >= answered, "round {round}: {answered} were answered, {debited} are remembered");
        // What was debited and not yet answered or spent when the process died counts against the bucket, never for it.
        lapsed += BURST * mode.leased / 100;
        assert!(
            debited <= answered + round * CALLERS + lapsed,
            "round {round}: {answered} answered, {debited} debited"
        );
    }
}
