//! The conformance suite. Without a leased scope all of it; with leases what they leave as it is.
//!
//! Left out with leases are the cases that look at the tokens of a bucket in the store, or that give back and then look: what is
//! held is not in the bucket. `answers.rs` and `law.rs` have what takes their place.

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
        budgets: a_refill_stops_at_the_burst;
        budgets: a_refusal_leaves_no_trace;
        budgets: a_lowered_burst_applies_at_once;
        budgets: a_raised_burst_is_filled_not_given;
        budgets: a_cost_of_zero_asks_no_bucket;
        budgets: a_cost_above_the_burst_never_fits;
        budgets: mistakes_are_errors_before_any_bucket_is_asked;
        budgets: a_caller_that_waits_as_told_is_granted;
        budgets: only_buckets_idle_for_longer_than_the_retention_are_deleted;
        budgets: extreme_budgets_and_moments_are_kept_to_the_bit;
        many: all_charges_are_debited_or_none;
        many: charges_on_one_bucket_add_up;
        many: the_longest_of_several_waits_is_true;
        many: a_take_of_the_most_charges_is_one_decision;
        many: keys_do_not_meet;
        records: a_first_claim_runs_and_later_ones_replay;
        records: a_lapsed_ticket_can_do_nothing;
        records: look_writes_nothing;
        records: deleting_expired_records_keeps_those_that_are_held;
        leaders: one_holder_leads_at_a_time;
        differential: records_follow_the_state_machine;
    }
}
