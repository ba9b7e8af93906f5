//! Law 8 as a property of the idempotency state machine: random claims, completions, releases and crashes under random
//! steps of the clock. Seeds are fixed: a failure repeats.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use admit::Timestamp;
use admit::idempotency::{
    Claim, Fence, Fingerprint, OnLapse, Outcome, Record, RecordKey, Response, Terms, Ticket,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

#[derive(Clone, Debug)]
enum Step {
    Claim,
    ClaimOtherPayload,
    Renew(usize),
    Complete(usize),
    Release(usize),
}

fn steps() -> impl Strategy<Value = (Step, u64)> {
    let step = prop_oneof![
        4 => Just(Step::Claim),
        1 => Just(Step::ClaimOtherPayload),
        2 => (0usize..8).prop_map(Step::Renew),
        2 => (0usize..8).prop_map(Step::Complete),
        1 => (0usize..8).prop_map(Step::Release),
    ];
    (step, prop_oneof![0u64..2_000, 0u64..70_000, Just(0u64), 80_000_000u64..90_000_000])
}

proptest! {
    #![proptest_config(Config {
        cases: 2_000, rng_seed: RngSeed::Fixed(8), failure_persistence: None, ..Config::default()
    })]

    #[test]
    fn at_most_one_run_holds_the_key_and_the_rest_replay_it(
        script in prop::collection::vec(steps(), 1..60),
        stay_blocked in any::<bool>(),
    ) {
        let on_lapse = if stay_blocked { OnLapse::StayBlocked } else { OnLapse::RunAgain };
        let terms = Terms { on_lapse, ..Terms::default() };
        let key = RecordKey::new("t", "POST", "/", "k");
        let (payload, other) = (Fingerprint::of("a"), Fingerprint::of("b"));
        let mut now = Timestamp::from_unix_micros(1_700_000_000_000_000).unwrap();
        let (mut record, mut fence) = (None::<Record>, 0);
        let mut tickets: Vec<Ticket> = Vec::new();
        let mut completed: Option<(Outcome, Timestamp)> = None;

        for (step, millis) in script {
            now = now.saturating_add(Duration::from_millis(millis));
            let live = tickets.iter().filter(|ticket| now < ticket.lease_until).count();
            prop_assert!(live <= 1, "two runs hold one key");
            let replayable = completed.clone().filter(|(_, until)| now < *until).map(|(outcome, _)| outcome);
            match step {
                Step::Claim | Step::ClaimOtherPayload => {
                    let asked = if matches!(step, Step::Claim) { payload } else { other };
                    let known = record.as_ref().filter(|known| !known.is_expired(now)).map(|known| known.fingerprint);
                    fence += 1;
                    let (claim, written) = Record::claim(record.as_ref(), key, asked, Fence::new(fence), &terms, now);
                    match claim {
                        Claim::Run(ticket) => {
                            prop_assert!(live == 0 && replayable.is_none());
                            tickets.push(ticket);
                            record = written;
                            completed = None;
                        }
                        Claim::Done(outcome) => prop_assert_eq!(Some(outcome), replayable),
                        Claim::InFlight { lease_left } => {
                            prop_assert_eq!(live, 1);
                            prop_assert!(lease_left <= terms.lease);
                        }
                        Claim::Blocked => prop_assert!(stay_blocked && live == 0),
                        Claim::Mismatch => prop_assert!(known.is_some_and(|known| known != asked)),
                    }
                }
                Step::Renew(i) => {
                    let Some(ticket) = tickets.get(i).cloned() else { continue };
                    let Some(held) = record.clone() else { continue };
                    if let Ok((renewed, longer)) = held.renew(&ticket, &terms, now) {
                        prop_assert!(now < ticket.lease_until && longer.lease_until >= ticket.lease_until);
                        record = Some(renewed);
                        tickets[i] = longer;
                    }
                }
                Step::Complete(i) => {
                    let Some(ticket) = tickets.get(i).cloned() else { continue };
                    let Some(held) = record.clone() else { continue };
                    let body = ticket.fence.number().to_be_bytes().to_vec();
                    let outcome = Outcome::Response(Response { status: 200, headers: vec![], body });
                    match held.complete(&ticket, outcome.clone(), &terms, now) {
                        Ok(done) => {
                            prop_assert!(now < ticket.lease_until, "a lapsed ticket completed");
                            record = Some(done);
                            completed = Some((outcome, now.saturating_add(terms.ttl)));
                            tickets[i].lease_until = now; // Spent.
                        }
                        Err(_) => prop_assert!(ticket.lease_until <= now),
                    }
                }
                Step::Release(i) => {
                    let Some(ticket) = tickets.get(i).cloned() else { continue };
                    let Some(held) = record.clone() else { continue };
                    if held.release(&ticket, now).is_ok() {
                        prop_assert!(now < ticket.lease_until, "a lapsed ticket released");
                        record = None;
                        tickets[i].lease_until = now; // Spent.
                    }
                }
            }
        }
    }
}
