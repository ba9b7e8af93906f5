//! The suite that every store runs: what the traits promise, case by case, and random operations against the pure law.
//!
//! In a test of a store, write a function that makes an empty store and whatever must outlive it, and let the macro make
//! one test of each case:
//!
//! ```
//! # #[cfg(feature = "memory")] mod example {
//! use admit::Rules;
//! use admit_store::memory::MemoryStore;
//!
//! async fn fresh(rules: Rules) -> (MemoryStore, ()) {
//!     (MemoryStore::new(rules), ())
//! }
//!
//! admit_store::conformance_tests!(fresh);
//! # }
//! ```
//!
//! A case panics where the store does not conform. All moments but those of one case are passed in, so nothing waits.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests, though they are compiled as a library.

pub mod admissions;
pub mod at_once;
pub mod budgets;
pub mod differential;
pub mod leaders;
pub mod many;
pub mod one_by_one;
pub mod property;
pub mod records;

use std::future::Future;
use std::time::Duration;

use admit::idempotency::{Record, RecordKey};
use admit::{AdmissionStore, Bucket, Budget, BudgetStore, Charge, Cost, Key, Now, Rules, Scope, Timestamp};

use crate::Leader;

/// Reads what a store keeps, as it is. For tests: a service asks [`BudgetStore::peek`] and
/// [`IdempotencyStore::look`](admit::IdempotencyStore::look).
pub trait Inspect {
    /// The bucket, if there is one.
    fn bucket(&self, scope: &Scope, key: &Key) -> impl Future<Output = Option<Bucket>> + Send;

    /// The record, if there is one.
    fn record(&self, key: &RecordKey) -> impl Future<Output = Option<Record>> + Send;
}

/// All that a store does.
pub trait Store: AdmissionStore + Leader + Inspect {}

impl<S: AdmissionStore + Leader + Inspect> Store for S {}

/// The first scope of the suite.
pub const ALPHA: Scope = Scope::from_static("alpha");
/// The second scope of the suite.
pub const BETA: Scope = Scope::from_static("beta");

/// What the suite expects a store to be made with: two scopes and a retention of one hour.
pub fn rules() -> Rules {
    Rules::new([ALPHA, BETA]).unwrap()
}

/// When the suite begins.
pub const START: Timestamp = match Timestamp::from_unix_micros(1_700_000_000_000_000) {
    Ok(start) => start,
    Err(_) => Timestamp::MIN,
};

/// So many microseconds after [`START`].
fn micros(after: u64) -> Timestamp {
    START.saturating_add(Duration::from_micros(after))
}

/// So many seconds after [`START`].
fn seconds(after: f64) -> Timestamp {
    START.saturating_add(Duration::from_secs_f64(after))
}

fn budget(text: &str) -> Budget {
    text.parse().unwrap()
}

fn charge(scope: Scope, key: &str, cost: f64, budget: &str) -> Charge {
    Charge { scope, key: Key::hashed(key), cost: Cost::new(cost).unwrap(), budget: budget.parse().unwrap() }
}

async fn grants<S: BudgetStore>(store: &S, charges: &[Charge], now: Timestamp) -> bool {
    store.take(charges, Now::At(now)).await.unwrap().is_granted()
}

/// One test for each case of the suite. The argument names an `async fn(Rules) -> (S, G)` that makes an empty store, and
/// what must be dropped after it. With `leased` after it, the cases of the [list](crate::conformance_list) that hold over leases
/// too. The calling crate needs `tokio` with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! conformance_tests {
    ($fresh:path) => {
        $crate::conformance_list! { __conformance_tests, all $fresh }
    };
    ($fresh:path, leased) => {
        $crate::conformance_list! { __conformance_tests, leased $fresh }
    };
}

/// The cases on buckets one after the other, inside one test, for settings that change how buckets are asked and nothing else.
/// The argument is an `async |Rules| -> (S, G)` as for [`conformance_tests!`](crate::conformance_tests), which has `leased` too.
#[macro_export]
macro_rules! conformance_in_turn {
    ($fresh:expr) => {
        $crate::conformance_list! { __conformance_in_turn, all ($fresh) }
    };
    ($fresh:expr, leased) => {
        $crate::conformance_list! { __conformance_in_turn, leased ($fresh) }
    };
}

/// The cases, for the macro that is named: those on buckets that hold over leases too; those that leases change; those on
/// records and leaderships; and admissions that leases change.
///
/// Leases change what is left in the store's buckets: some of it is held, and what is given back does not reach it. And of
/// callers at once some may be refused while a slice is on its way.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_list {
    ($macro:ident, $($arguments:tt)*) => {
        $crate::$macro! { $($arguments)*
            {
                budgets: a_missing_bucket_is_full;
                budgets: a_bucket_refills_at_its_rate;
                budgets: a_refill_stops_at_the_burst;
                budgets: a_refusal_leaves_no_trace;
                budgets: a_clock_that_runs_behind_mints_nothing;
                budgets: a_lowered_burst_applies_at_once;
                budgets: a_raised_burst_is_filled_not_given;
                budgets: a_cost_of_zero_asks_no_bucket;
                budgets: a_cost_above_the_burst_never_fits;
                budgets: mistakes_are_errors_before_any_bucket_is_asked;
                budgets: a_caller_that_waits_as_told_is_granted;
                budgets: peek_writes_nothing;
                budgets: only_buckets_idle_for_longer_than_the_retention_are_deleted;
                budgets: a_sweep_changes_no_decision;
                budgets: extreme_budgets_and_moments_are_kept_to_the_bit;
                budgets: the_stores_own_clock_tells_the_time;
                many: all_charges_are_debited_or_none;
                many: charges_on_one_bucket_add_up;
                many: the_longest_of_several_waits_is_true;
                many: a_take_of_the_most_charges_is_one_decision;
                many: keys_do_not_meet;
            }
            {
                budgets: a_refund_stops_at_the_burst_and_makes_no_bucket;
                many: a_refund_of_several_charges_gives_each_back;
                many: concurrent_takes_grant_exactly_what_is_there;
                many: takes_in_opposite_order_do_not_deadlock;
                many: concurrent_takes_with_refunds_and_sweeps_are_never_over;
                differential: budgets_follow_the_law_to_the_bit;
                at_once: what_comes_at_once_is_decided_in_order;
            }
            {
                records: a_first_claim_runs_and_later_ones_replay;
                records: responses_are_kept_byte_for_byte;
                records: a_claim_in_flight_is_told_what_is_left_of_the_lease;
                records: another_payload_is_a_mismatch;
                records: a_lapsed_run_runs_again;
                records: a_lapsed_run_stays_blocked_where_the_terms_say_so;
                records: renewing_extends_the_lease;
                records: a_lapsed_ticket_can_do_nothing;
                records: a_superseded_ticket_can_do_nothing;
                records: a_ticket_is_good_for_one_completion;
                records: a_released_key_runs_again;
                records: every_claim_has_a_larger_fence;
                records: a_record_is_forgotten_when_its_time_is_over;
                records: a_tombstone_is_not_run_again;
                records: look_writes_nothing;
                records: deleting_expired_records_keeps_those_that_are_held;
                records: concurrent_claims_run_once;
                admissions: a_key_that_is_taken_is_told_before_an_empty_bucket;
                admissions: what_costs_nothing_is_claimed_and_what_is_wrong_is_a_mistake;
                leaders: one_holder_leads_at_a_time;
                leaders: a_change_of_hands_has_a_larger_fence;
                leaders: leaderships_of_other_names_are_apart;
                leaders: concurrent_holders_do_not_share;
                differential: records_follow_the_state_machine;
            }
            {
                admissions: a_free_key_whose_charges_fit_is_charged_and_claimed;
                admissions: a_key_that_is_taken_costs_nothing;
                admissions: a_refusal_claims_nothing_and_debits_nothing;
                admissions: what_an_admission_by_a_larger_budget_leaves_is_there_for_takes;
                admissions: a_key_that_is_free_again_runs_again_and_pays_again;
                admissions: of_many_admissions_of_a_key_one_runs_and_one_is_charged;
                admissions: concurrent_admissions_and_takes_grant_exactly_what_is_there;
                one_by_one: an_admission_is_a_look_a_take_and_a_claim;
            }
        }
    };
}

/// What [`conformance_tests!`](crate::conformance_tests) makes of the list.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    (all $fresh:path { $($buckets:tt)* } { $($exact:tt)* } { $($others:tt)* } { $($paid:tt)* }) => {
        $crate::__conformance_tests! { $fresh, $($buckets)* $($exact)* $($others)* $($paid)* }
    };
    (leased $fresh:path { $($buckets:tt)* } { $($exact:tt)* } { $($others:tt)* } { $($paid:tt)* }) => {
        $crate::__conformance_tests! { $fresh, $($buckets)* $($others)* }
    };
    ($fresh:path, $($group:ident: $case:ident;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (store, _fixture) = $fresh($crate::conformance::rules()).await;
                $crate::conformance::$group::$case(store).await;
            }
        )*
    };
}

/// What [`conformance_in_turn!`](crate::conformance_in_turn) makes of the list.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_in_turn {
    (all ($fresh:expr) { $($buckets:tt)* } { $($exact:tt)* } $($others:tt)*) => {
        $crate::__conformance_in_turn! { $fresh, $($buckets)* $($exact)* }
    };
    (leased ($fresh:expr) { $($buckets:tt)* } $($others:tt)*) => {
        $crate::__conformance_in_turn! { $fresh, $($buckets)* }
    };
    ($fresh:expr, $($group:ident: $case:ident;)*) => {{
        let fresh = $fresh;
        $(
            println!("{}", stringify!($case)); // Told if it fails.
            let (store, _fixture) = fresh($crate::conformance::rules()).await;
            Box::pin($crate::conformance::$group::$case(store)).await;
        )*
    }};
}
