//! The conformance suite. Without a leased scope all of it; with leases what they leave as it is.
//!
//! Left out with leases are six cases. Two look at what a refund left in the store, which it does not reach; two at the tokens of a
//! bucket in the store to the last one, of which some are held; and two have concurrent callers get all that is there, of whom
//! some may be refused while a slice is on its way. `answers.rs`, `callers.rs` and `law.rs` have what takes their place.

mod off {
    use admit::Rules;
    use admit_store::leases::{Leased, Leases};
    use admit_store::memory::MemoryStore;

    async fn fresh(rules: Rules) -> (Leased<MemoryStore>, ()) {
        (Leased::new(MemoryStore::new(rules), Leases::default()), ())
    }

    admit_store::conformance_tests!(fresh);
}

mod on {
    use admit::Rules;
    use admit_store::leases::Leased;
    use admit_store::memory::MemoryStore;

    async fn fresh(rules: Rules) -> (Leased<MemoryStore>, ()) {
        (Leased::new(MemoryStore::new(rules), super::super::both("50%")), ())
    }

    admit_store::conformance_cases! { fresh,
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
}
