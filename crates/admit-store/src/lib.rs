//! Stores of rate budgets and idempotency records.
