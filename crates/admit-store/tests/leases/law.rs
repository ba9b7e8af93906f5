//! Random schedules of several replicas on one bucket, against the pure law.

use std::time::Duration;

use admit::{Budget, BudgetStore, Charge, Clock, Cost, Decision, ManualClock, Now, Timestamp, Wait};
use admit_store::conformance::property::hold;
use admit_store::conformance::{ALPHA, BETA, START, rules};
use admit_store::leases::{Counts, Leased, Leases, Share};
use admit_store::memory::{Limits, MemoryStore};
use proptest::prelude::*;

use super::charge;
use super::unsure::{Fate, Unsure};

const REPLICAS: usize = 3;
const MAX_OPERATIONS: usize = 120;
const BUDGETS: [&str; 4] =
    ["100/second", "1000/hour burst 50", "40/minute burst 20", "50000/second burst 2000"];

/// What doubles round away, as a part of the burst.
const ROUNDING: f64 = 1e-9;

#[derive(Clone, Debug)]
enum Op {
    /// By one of the replicas, the cost in per cent of the burst.
    Take(usize, u32, Fate),
    /// The same, beside a charge that is not leased.
    TakeBoth(usize, u32, Fate),
    /// By a caller that goes away while the store has its take.
    Leave(usize, u32),
    /// Two callers of one replica, of whom the one that the store debits first has its answer last, so much later.
    Overlap(usize, [u32; 2], u64),
    /// A take of both charges that another replica's drain of the leased one overtakes, so much later.
    Overtaken([usize; 2], u32, u64),
    /// If it is refused, a caller comes again when it was told to, and a microsecond before that.
    Wait(usize, u32, bool),
    /// By a process that has no leases.
    Direct(u32),
    /// By the replica that has it.
    Refund(prop::sample::Index),
    Peek(usize, u32),
    /// The process dies, and another takes its place.
    Kill(usize),
    Sweep,
    Advance(u64),
    /// All replicas take, one by one, until they are refused: all that can be granted at this instant is.
    Drain,
}

fn op() -> impl Strategy<Value = Op> {
    let cost = || prop_oneof![6 => 1..3_u32, 2 => 1..20_u32, 1 => 1..100_u32];
    let pause = || prop_oneof![2 => Just(0), 1 => 0..2_000_000_u64];
    let fate =
        || prop_oneof![12 => Just(Fate::Answered), 1 => Just(Fate::Fails), 1 => Just(Fate::AnswerIsLost)];
    prop_oneof![
        30 => (0..REPLICAS, cost(), fate()).prop_map(|(replica, cost, fate)| Op::Take(replica, cost, fate)),
        3 => (0..REPLICAS, cost(), fate()).prop_map(|(replica, cost, fate)| Op::TakeBoth(replica, cost, fate)),
        2 => (0..REPLICAS, cost()).prop_map(|(replica, cost)| Op::Leave(replica, cost)),
        4 => (0..REPLICAS, cost(), cost(), pause())
            .prop_map(|(replica, one, two, micros)| Op::Overlap(replica, [one, two], micros)),
        2 => (0..REPLICAS, 0..REPLICAS, cost(), pause())
            .prop_map(|(one, two, cost, micros)| Op::Overtaken([one, two], cost, micros)),
        3 => (0..REPLICAS, cost(), any::<bool>()).prop_map(|(replica, cost, both)| Op::Wait(replica, cost, both)),
        1 => cost().prop_map(Op::Direct),
        4 => any::<prop::sample::Index>().prop_map(Op::Refund),
        1 => (0..REPLICAS, cost()).prop_map(|(replica, cost)| Op::Peek(replica, cost)),
        1 => (0..REPLICAS).prop_map(Op::Kill),
        1 => Just(Op::Sweep),
        1 => Just(Op::Drain),
        6 => (0..20_000_u64).prop_map(Op::Advance),
        3 => (0..2_000_000_u64).prop_map(Op::Advance),
        1 => (0..4_000_000_000_u64).prop_map(Op::Advance),
    ]
}

/// The tokens that the law allows: those of a bucket that every grant is debited from.
struct Allowed {
    budget: Budget,
    tokens: f64,
    at: Timestamp,
}

impl Allowed {
    fn full(budget: Budget) -> Self {
        Self { budget, tokens: budget.burst().tokens(), at: START }
    }

    fn rounding(&self) -> f64 {
        self.budget.burst().tokens() * ROUNDING
    }

    fn refill(&mut self, now: Timestamp) {
        let refilled = now.since(self.at).as_secs_f64() * self.budget.rate().tokens_per_second();
        self.tokens = (self.tokens + refilled).min(self.budget.burst().tokens());
        self.at = now;
    }

    fn grant(&mut self, cost: f64) -> Result<(), String> {
        self.tokens -= cost;
        match self.tokens >= -self.rounding() {
            true => Ok(()),
            false => Err(format!("{} more were granted than the law allows", -self.tokens)),
        }
    }

    fn refund(&mut self, cost: f64) {
        self.tokens = (self.tokens + cost).min(self.budget.burst().tokens());
    }
}

struct Replica {
    store: Leased<Unsure>,
    clock: ManualClock,
    began: Timestamp,
    /// When it started, by the store's clock.
    since: Timestamp,
}

/// The machines' clocks run by these factors, and start anywhere.
const SPEEDS: [f64; REPLICAS] = [1.0, 0.81, 1.3];

impl Replica {
    fn start(store: &Unsure, share: Share, of: usize, since: Timestamp) -> Self {
        let began = START.saturating_add(Duration::from_secs(1_000 * of as u64));
        let clock = ManualClock::at(began);
        let leases = Leases::new([(ALPHA, share)]);
        let store = Leased::with(store.clone(), leases, clock.clone(), Counts::default());
        Self { store, clock, began, since }
    }

    fn advance(&self, now: Timestamp, speed: f64) {
        self.clock.set(self.began.saturating_add(now.since(self.since).mul_f64(speed)));
    }
}

async fn case(budget: &'static str, share: Share, operations: Vec<Op>) -> Result<(), String> {
    let clock = ManualClock::at(START);
    let unsure = Unsure::new(MemoryStore::with(rules(), Limits::default(), clock.clone()));
    let mut replicas: Vec<Replica> =
        (0..REPLICAS).map(|of| Replica::start(&unsure, share, of, START)).collect();
    let mut counts: Vec<Counts> = replicas.iter().map(|replica| replica.store.counts().clone()).collect();
    let burst = budget.parse::<Budget>().unwrap().burst().tokens();
    let charge = |percent: u32| charge(ALPHA, "k", burst * f64::from(percent) / 100.0, budget);
    let beside = super::charge(BETA, "k", 1.0, "30/second");
    let mut allowed = [Allowed::full(charge(1).budget), Allowed::full(beside.budget)];
    let mut grants: Vec<(usize, Vec<Charge>)> = Vec::new();
    let advance = |replicas: &[Replica], micros| {
        clock.advance(Duration::from_micros(micros));
        for (replica, speed) in replicas.iter().zip(SPEEDS) {
            replica.advance(clock.now(), speed);
        }
    };
    for (i, operation) in operations.into_iter().chain([Op::Drain]).enumerate() {
        let what = format!("operation {i}, {operation:?}");
        let told = |error: String| format!("{what}: {error}");
        allowed.iter_mut().for_each(|allowed| allowed.refill(clock.now()));
        unsure.fates([]);
        let mut granted = None;
        match operation {
            Op::Take(by, percent, fate) | Op::TakeBoth(by, percent, fate) => {
                let mut charges = vec![charge(percent)];
                if matches!(operation, Op::TakeBoth(..)) {
                    charges.push(beside.clone());
                }
                unsure.fates([fate]);
                let decision = replicas[by].store.take(&charges, Now::Store).await;
                let refused = decision.as_ref().is_ok_and(|decision| !decision.is_granted());
                if refused && charges.len() == 1 {
                    let held: f64 = replicas.iter().map(|replica| replica.store.held()).sum();
                    let lapsed: f64 = counts.iter().map(Counts::lapsed_tokens).sum();
                    let there = allowed[0].tokens - held - lapsed - unsure.lost();
                    if there >= charges[0].cost.tokens() + allowed[0].rounding() {
                        return Err(told(format!("{there} are neither held nor lost, and were refused")));
                    }
                }
                granted = decision.is_ok_and(|decision| decision.is_granted()).then_some((by, charges));
            }
            Op::Leave(by, percent) => {
                unsure.fates([Fate::Waits]);
                let charges = vec![charge(percent)];
                let take = replicas[by].store.take(&charges, Now::Store);
                let gone = tokio::time::timeout(Duration::from_millis(1), take).await; // The clock is paused.
                granted = gone.is_ok_and(|decision| decision.unwrap().is_granted()).then_some((by, charges));
                unsure.fates([]);
                unsure.open(); // For the slice that is on its way, if it is one.
                settle().await;
            }
            Op::Overlap(by, percents, micros) => {
                unsure.fates([Fate::Waits]);
                let began = clock.now();
                let charges = percents.map(|percent| vec![charge(percent)]);
                // By the moment of its debit, if the store had it before the time passed.
                let take =
                    async |which: usize| match replicas[by].store.take(&charges[which], Now::Store).await {
                        Ok(Decision::Granted(grant)) if grant.at == Some(began) => Some(began),
                        Ok(Decision::Granted(_)) => Some(clock.now()),
                        decision => decision.map(|_| None).unwrap(),
                    };
                let (one, two, ()) = tokio::join!(take(0), take(1), async {
                    settle().await;
                    advance(&replicas, micros);
                    unsure.open();
                });
                let mut granted = [(one, &charges[0]), (two, &charges[1])];
                granted.sort_by_key(|(at, _)| *at);
                for (at, charges) in granted {
                    if let Some(at) = at {
                        allowed[0].refill(at);
                        allowed[0].grant(charges[0].cost.tokens()).map_err(told)?;
                        grants.push((by, charges.clone()));
                    }
                }
            }
            Op::Overtaken([by, other], percent, micros) => {
                unsure.fates([Fate::Stuck]);
                let both = [charge(percent), beside.clone()];
                let (decision, drained) = tokio::join!(replicas[by].store.take(&both, Now::Store), async {
                    settle().await;
                    advance(&replicas, micros);
                    let drained = drain(&replicas[other], &charge(1)).await;
                    unsure.open();
                    drained
                });
                allowed.iter_mut().for_each(|allowed| allowed.refill(clock.now()));
                allowed[0].grant(drained).map_err(told)?;
                granted = decision.unwrap().is_granted().then(|| (by, both.to_vec()));
            }
            Op::Wait(by, percent, is_both) => {
                let charges =
                    if is_both { vec![charge(percent), beside.clone()] } else { vec![charge(percent)] };
                let take = async || replicas[by].store.take(&charges, Now::Store).await.unwrap();
                let decision = take().await;
                if let Some(refusal) = decision.refusal() {
                    let Wait::After(wait) = refusal.longest().1 else {
                        return Err(told(format!("{refusal:?}")));
                    };
                    advance(&replicas, wait.as_micros() as u64 - 1);
                    if take().await.is_granted() {
                        return Err(told(format!("granted a microsecond before {wait:?}")));
                    }
                    advance(&replicas, 1);
                    if !take().await.is_granted() {
                        return Err(told(format!("refused after {wait:?}")));
                    }
                    allowed.iter_mut().for_each(|allowed| allowed.refill(clock.now()));
                }
                granted = Some((by, charges));
            }
            Op::Direct(percent) => {
                let charges = vec![charge(percent)];
                let decision = unsure.store.take(&charges, Now::Store).await.unwrap();
                if decision.is_granted() {
                    allowed[0].grant(charges[0].cost.tokens()).map_err(told)?; // Who has no leases refunds nothing.
                }
            }
            Op::Refund(which) if !grants.is_empty() => {
                let (by, charges) = grants.swap_remove(which.index(grants.len()));
                replicas[by].store.refund(&charges).await.unwrap();
                for (allowed, charge) in allowed.iter_mut().zip(&charges) {
                    allowed.refund(charge.cost.tokens());
                }
            }
            Op::Peek(by, percent) => {
                let before = replicas[by].store.held();
                let charges = [charge(percent)];
                let peeked = replicas[by].store.peek(&charges, Now::Store).await.unwrap();
                if before != replicas[by].store.held() {
                    return Err(told("a look changed what is held".into()));
                }
                let decision = replicas[by].store.take(&charges, Now::Store).await.unwrap();
                if peeked.is_granted() != decision.is_granted() {
                    return Err(told(format!("the look said {peeked:?}, the take {decision:?}")));
                }
                granted = decision.is_granted().then(|| (by, charges.to_vec()));
            }
            Op::Kill(which) => {
                replicas[which] = Replica::start(&unsure, share, which, clock.now());
                counts.push(replicas[which].store.counts().clone());
                grants.retain(|(by, _)| *by != which);
            }
            Op::Sweep => drop(unsure.delete_idle(Now::Store).await.unwrap()),
            Op::Advance(micros) => advance(&replicas, micros),
            Op::Drain => {
                for replica in &replicas {
                    allowed[0].grant(drain(replica, &charge(1)).await).map_err(told)?;
                }
            }
            Op::Refund(_) => {}
        }
        if let Some((by, charges)) = granted {
            for (allowed, charge) in allowed.iter_mut().zip(&charges) {
                allowed.grant(charge.cost.tokens()).map_err(told)?;
            }
            grants.push((by, charges));
        }
    }
    Ok(())
}

/// Takes until it is refused, and tells how many tokens were granted.
async fn drain(replica: &Replica, charge: &Charge) -> f64 {
    let mut granted = 0.0;
    while replica.store.take(std::slice::from_ref(charge), Now::Store).await.unwrap().is_granted() {
        granted += charge.cost.tokens();
    }
    granted
}

/// Lets what was set going end.
async fn settle() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// Takes, refunds, failures, deaths and sweeps, on clocks of different speeds and while answers are on their way: a bucket that
/// every grant is debited from never runs out, so in no window more is granted than the law allows. And whoever is refused is
/// so because of what is held, lapsed or was lost, and is granted when it was told, not a microsecond sooner.
#[tokio::test(start_paused = true)]
async fn replicas_grant_no_more_than_the_law_and_no_less_than_what_they_do_not_hold() {
    let operations = prop::collection::vec(op(), 1..=MAX_OPERATIONS);
    let shares = prop_oneof![Just(5.0), Just(20.0), Just(50.0)];
    let cases = (prop::sample::select(&BUDGETS[..]), shares, operations);
    hold("leases", cases, async |(budget, share, operations)| {
        case(budget, Share::percent(share).unwrap(), operations).await
    })
    .await;
}

/// A cost is never cut: what is told is what was asked for.
#[test]
fn the_costs_of_the_schedules_are_costs() {
    assert!(BUDGETS.iter().all(|budget| rules().retention.allows(budget.parse().unwrap())));
    assert_eq!(charge(ALPHA, "k", 0.5, BUDGETS[0]).cost, Cost::new(0.5).unwrap());
}

proptest! {
    /// A slice was rounded down to a multiple of the cost. Of a cost so small that their quotient is infinite it was infinite too:
    /// the store was asked for the cost alone, and a whole share was held that nobody had debited.
    #[test]
    fn of_no_cost_however_small_is_more_held_than_was_debited(
        exponents in prop::collection::vec(prop_oneof![-323..2_i32, -323..-300_i32], 1..40),
    ) {
        let clock = ManualClock::at(START);
        let shared = MemoryStore::with(rules(), Limits::default(), clock.clone());
        let leases = Leases::new([(ALPHA, "50%".parse().unwrap())]);
        let store = Leased::with(shared.clone(), leases, clock, Counts::default());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (burst, mut granted) = (100.0, 0.0);
            let of = |tokens| [charge(ALPHA, "k", tokens, "100/hour")];
            for exponent in exponents {
                let cost = 10_f64.powi(exponent).max(f64::from_bits(1));
                granted += match store.take(&of(cost), Now::Store).await.unwrap() {
                    Decision::Granted(_) => cost,
                    Decision::Refused(_) => 0.0,
                };
                let peeked = shared.peek(&of(f64::from_bits(1)), Now::Store).await.unwrap();
                let in_store = if peeked.is_granted() { super::left(&peeked) } else { 0.0 };
                let there = in_store + store.held() + granted;
                assert!(there <= burst * (1.0 + ROUNDING), "{there} of {burst}, after a cost of {cost:e}");
                assert!(store.counts().taken_tokens() <= burst && store.counts().lapsed_tokens() <= burst);
            }
        });
    }
}
