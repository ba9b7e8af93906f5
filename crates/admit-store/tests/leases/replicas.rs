//! Replicas in front of one PostgreSQL.

use std::time::Duration;

use admit::{Budget, BudgetStore, Clock, MonotonicClock, Now};
use admit_store::conformance::{ALPHA, rules};
use admit_store::leases::{Counts, Leased, Leases};
use admit_store::postgres::{PostgresConfig, PostgresStore};
use admit_testbed::Postgres;
use tokio::task::JoinSet;

use super::charge;

const REPLICAS: usize = 4;
const CALLERS: usize = 16;
const BUDGET: &str = "100/second burst 500";

/// How many takes share a statement, and how many refusals are remembered: of each replica another.
const SETTINGS: [(usize, usize); REPLICAS] = [(4_096, 16_384), (4_096, 0), (1, 16_384), (1, 0)];

/// Four replicas, each with its own connections, clock and settings, take as fast as they can for a second and a half: no more is granted
/// than the law allows, and what was there at the start is granted, held or lapsed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_on_postgres_grant_what_the_law_allows() {
    let postgres = Postgres::start().unwrap();
    let clock = MonotonicClock::start();
    let counts = Counts::default();
    let began = clock.now();
    let mut replicas = Vec::new();
    for (batch, refusals) in SETTINGS {
        let mut config = PostgresConfig::new(postgres.url());
        (config.batch, config.refusals) = (batch, refusals);
        let store = PostgresStore::connect(config, rules()).await.unwrap();
        let leases = Leases::new([(ALPHA, "5%".parse().unwrap())]);
        replicas.push(Leased::with(store, leases, MonotonicClock::start(), counts.clone()));
    }
    let mut callers = JoinSet::new();
    for i in 0..REPLICAS * CALLERS {
        let store = replicas[i % REPLICAS].clone();
        callers.spawn(async move {
            let one = [charge(ALPHA, "hot", 1.0, BUDGET)];
            let mut granted = 0_u32;
            while clock.now().since(began) < Duration::from_millis(1_500) {
                granted += u32::from(store.take(&one, Now::Store).await.unwrap().is_granted());
            }
            granted
        });
    }
    let mut granted: u32 = callers.join_all().await.into_iter().sum();
    for replica in &replicas {
        while replica.take(&[charge(ALPHA, "hot", 1.0, BUDGET)], Now::Store).await.unwrap().is_granted() {
            granted += 1;
        }
    }
    let elapsed = clock.now().since(began).as_secs_f64();
    let held: f64 = replicas.iter().map(Leased::held).sum();
    let budget: Budget = BUDGET.parse().unwrap();
    let (burst, rate) = (budget.burst().tokens(), budget.rate().tokens_per_second());
    let (granted, allowed) = (f64::from(granted), burst + rate * elapsed);
    let told = format!("{granted} of {allowed}, {held} held, {} lapsed", counts.lapsed_tokens());
    assert!(granted <= allowed, "{told}");
    assert!(granted + held + counts.lapsed_tokens() >= burst, "{told}");
    assert!(counts.taken() > 0, "{told}");
}
