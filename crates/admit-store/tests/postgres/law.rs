//! Never over: the rate budget document's own proof, in one process and in four.

use std::process::Stdio;

use admit::{Bucket, Budget, BudgetStore, Cost, Decision, Now, Timestamp};
use admit_testbed::Postgres;
use futures::future::join_all;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::{INGEST, READ, SETTINGS, charge, patient, store};

fn at(micros: i64) -> Now {
    Now::At(Timestamp::from_unix_micros(1_700_000_000_000_000 + micros).unwrap())
}

#[tokio::test]
async fn a_bucket_is_minted_debited_refilled_and_given_back() {
    let postgres = Postgres::fast().unwrap();
    let store = store(&postgres.url()).await;
    let three = [charge(INGEST, "node", 3.0, "10/s")];
    let left = |decision: Decision| match decision {
        Decision::Granted(grant) => grant.left[0].unwrap(),
        Decision::Refused(refusal) => -refusal.standings[0].level.unwrap(),
    };
    assert_eq!(left(store.take(&three, at(0)).await.unwrap()), 7.0);
    assert_eq!(left(store.take(&three, at(0)).await.unwrap()), 4.0);
    assert_eq!(
        left(store.take(&three, at(-500_000)).await.unwrap()),
        1.0,
        "a clock that runs behind mints nothing"
    );
    let Decision::Refused(refusal) = store.take(&three, at(0)).await.unwrap() else { panic!() };
    assert_eq!(refusal.longest().1, admit::Wait::After(std::time::Duration::from_millis(200)));
    assert_eq!(left(store.take(&three, at(199_999)).await.unwrap()), -(1.0 + 199_999.0 / 1e6 * 10.0));
    assert_eq!(left(store.take(&three, at(200_000)).await.unwrap()), 0.0);
    store.refund(&three).await.unwrap();
    assert_eq!(left(store.peek(&three, at(200_000)).await.unwrap()), 3.0);
    store.refund(&[charge(INGEST, "node", 100.0, "10/s"), charge(READ, "gone", 1.0, "1/s")]).await.unwrap();
    assert_eq!(left(store.peek(&three, at(200_000)).await.unwrap()), 10.0);

    let many = [charge(INGEST, "node", 10.0, "10/s"), charge(READ, "node", 2.0, "2/s")];
    assert!(store.take(&many, at(200_000)).await.unwrap().is_granted());
    let many = [charge(READ, "other", 1.0, "2/s"), charge(INGEST, "node", 1.0, "10/s")];
    let Decision::Refused(refusal) = store.take(&many, at(200_000)).await.unwrap() else { panic!() };
    assert_eq!(refusal.standings[0].level, Some(2.0));
    assert_eq!(postgres.psql("SELECT count(*) FROM admit.rate_budgets").unwrap(), "2", "nothing was minted");

    assert_eq!(store.delete_idle(at(200_000 + 3_600_000_000)).await.unwrap(), 0);
    assert_eq!(store.delete_idle(at(200_001 + 3_600_000_000)).await.unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_takes_from_two_pools_at_one_instant_grant_what_is_there() {
    let postgres = Postgres::start().unwrap();
    for (i, tokens) in [1_usize, 37, 99, 100, 101].into_iter().enumerate() {
        let key = format!("key {i}");
        let (one, other) = (SETTINGS[i % SETTINGS.len()], SETTINGS[(i + 1) % SETTINGS.len()]);
        let pools = [patient(&postgres.url(), one).await, patient(&postgres.url(), other).await];
        let one = [charge(INGEST, &key, 1.0, &format!("{tokens}/s"))];
        let two = [one[0].clone(), charge(READ, &key, 1.0, &format!("{tokens}/s"))];
        for charges in [one.to_vec(), two.to_vec()] {
            postgres.psql("TRUNCATE admit.rate_budgets").unwrap();
            let takes = (0..100).map(|i| {
                let (store, charges) = (pools[i % 2].clone(), charges.clone());
                tokio::spawn(async move { store.take(&charges, at(0)).await.unwrap().is_granted() })
            });
            let granted =
                join_all(takes).await.into_iter().filter(|granted| *granted.as_ref().unwrap()).count();
            assert_eq!(granted, tokens.min(100), "{tokens} tokens, {} charges", charges.len());
        }
    }
}

/// What a process is to do: URL, which of the settings, callers, takes of each, cost and budget.
const TASK: &str = "ADMIT_TEST_TAKES";

/// What one of several processes does: takes as told by its environment, and prints the moment of each grant in µs.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "no test: a process that the tests of this file start"]
async fn one_of_four() {
    let task = std::env::var(TASK).expect("started by a test");
    let [url, settings, callers, takes, cost, budget] = task.split(';').collect::<Vec<_>>()[..] else {
        panic!("{task}")
    };
    let store = patient(url, SETTINGS[settings.parse::<usize>().unwrap()]).await;
    let charge = charge(INGEST, "hot", cost.parse().unwrap(), budget);
    let takes: usize = takes.parse().unwrap();
    let callers = (0..callers.parse().unwrap()).map(|_| {
        let (store, charge) = (store.clone(), charge.clone());
        tokio::spawn(async move {
            let mut grants = Vec::new();
            for _ in 0..takes {
                if let Decision::Granted(grant) =
                    store.take(std::slice::from_ref(&charge), Now::Store).await.unwrap()
                {
                    grants.push(grant.at.unwrap().unix_micros());
                }
            }
            grants
        })
    });
    for grants in join_all(callers).await {
        grants.unwrap().iter().for_each(|grant| println!("grant {grant}"));
    }
}

/// Runs [`one_of_four`] at once with each of these settings and returns the moments of all grants, in order.
async fn four_processes(
    url: &str,
    settings: [usize; 4],
    callers: usize,
    takes: usize,
    cost: f64,
    budget: &str,
) -> Vec<i64> {
    let run = |settings: usize| async move {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "law::one_of_four", "--nocapture"])
            .env(TASK, format!("{url};{settings};{callers};{takes};{cost};{budget}"))
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut output = String::new();
        child.stdout.take().unwrap().read_to_string(&mut output).await.unwrap();
        assert!(child.wait().await.unwrap().success(), "{output}");
        output.lines().filter_map(|line| line.strip_prefix("grant ")?.parse().ok()).collect::<Vec<i64>>()
    };
    let mut grants: Vec<i64> = join_all(settings.map(run)).await.concat();
    grants.sort_unstable();
    grants
}

#[tokio::test]
async fn a_hundred_takes_from_four_processes_grant_what_is_there() {
    let postgres = Postgres::start().unwrap();
    // On a fresh database: the four also make the tables, at once.
    let grants = four_processes(&postgres.url(), [0, 1, 2, 3], 5, 5, 1.0, "37/h").await;
    assert_eq!(grants.len(), 37);
}

fn moment(unix_micros: i64) -> Timestamp {
    Timestamp::from_unix_micros(unix_micros).unwrap()
}

/// How many settings to draw. ADMIT_TEST_SETTINGS asks for more in a soak.
const DRAWN: usize = 100;

#[tokio::test]
async fn four_processes_never_exceed_burst_and_rate_in_any_window() {
    let postgres = Postgres::start().unwrap();
    store(&postgres.url()).await;
    let settings = std::env::var("ADMIT_TEST_SETTINGS").map_or(DRAWN, |n| n.parse().unwrap());
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64; // xorshift: any fixed sequence will do.
    let mut below = |bound: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % bound
    };
    for turn in 0..settings {
        // All alike, or each another.
        let modes = if turn % 2 == 0 { [turn / 2 % SETTINGS.len(); 4] } else { [0, 1, 2, 3] };
        postgres.psql("TRUNCATE admit.rate_budgets").unwrap();
        let (callers, cost) = (1 + below(16) as usize, 1.0 + below(30) as f64 / 10.0);
        let (rate, burst) = (1 + below(200), 4 + below(100));
        let budget = format!("{rate}/s burst {burst}");
        let takes = 10 + 120 / callers; // From four processes always more than the largest burst.
        let grants = four_processes(&postgres.url(), modes, callers, takes, cost, &budget).await;
        let what = format!("{modes:?}, {callers} callers, cost {cost}, {budget}: {} grants", grants.len());
        for (i, first) in grants.iter().enumerate() {
            for (j, last) in grants.iter().enumerate().skip(i) {
                let (granted, seconds) = ((j - i + 1) as f64 * cost, (last - first) as f64 / 1e6);
                let most = burst as f64 + rate as f64 * seconds;
                assert!(granted <= most + 1e-6, "{what}; from {first} to {last}: {granted} of {most}");
            }
        }
        assert!(grants.len() as f64 * cost > burst as f64 - cost, "{what}: less than was there");
        // Nothing is lost either: the law, applied to the grants in order, comes to the bucket that is there.
        let (cost, budget): (Cost, Budget) = (Cost::new(cost).unwrap(), budget.parse().unwrap());
        let mut bucket = Bucket::full(budget, moment(grants[0]));
        for grant in &grants {
            bucket = bucket.debit(cost, budget, moment(*grant)).expect(&what);
        }
        let there = postgres.psql("SELECT tokens FROM admit.rate_budgets").unwrap();
        assert_eq!(there.parse(), Ok(bucket.tokens), "{what}");
    }
}
