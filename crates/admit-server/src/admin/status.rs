//! `/status`: how the program stands, for people and for `admit status`.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use crate::health;
use crate::reload::Running;
use crate::text_of_time::rfc3339;

/// How the program stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Whether the store answers, and the policy on the disk is in force.
    pub healthy: bool,
    /// Of the program.
    pub version: String,
    /// Since the start, in whole seconds.
    pub uptime_seconds: u64,
    /// The policy in force.
    pub policy: PolicyStatus,
    /// The store.
    pub store: StoreStatus,
    /// What was decided since the start.
    pub decisions: DecisionTotals,
}

/// The policy in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// Its file, or what it is made of.
    pub from: String,
    /// Since when it is in force, as RFC 3339 has it.
    pub since: String,
    /// Whether it is what the disk has.
    pub current: bool,
    /// What is wrong with what the disk has.
    pub error: Option<String>,
    /// How many budgets it has.
    pub budgets: usize,
    /// How many routes.
    pub routes: usize,
    /// How many API keys.
    pub keys: usize,
}

/// The store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// `memory`, `sqlite` or `postgres`.
    pub kind: String,
    /// Its URL, without a password.
    pub url: String,
    /// `up`, or in what way it does not answer: a [kind](admit::UnavailableKind).
    pub health: String,
    /// What to do about it, if it does not answer.
    pub advice: Option<String>,
}

/// What was decided, each budget of a request counted by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionTotals {
    /// Debited.
    pub granted: u64,
    /// Not enough was left.
    pub refused: u64,
    /// Not admitted, as the store did not answer.
    pub unavailable: u64,
    /// Admitted although the store did not answer, as the budget has it.
    pub admitted_unavailable: u64,
}

/// Asks the store, and tells how everything stands.
pub(super) async fn status(State(running): State<Running>) -> Json<Status> {
    let answer = health::store(&running).await;
    let (in_force, not_in_force) = (running.in_force(), running.not_in_force());
    let policy = &in_force.policy;
    let store = StoreStatus {
        kind: in_force.store.kind().to_owned(),
        url: policy.server.store.to_string(),
        health: answer.as_ref().map_or_else(|cause| cause.kind().as_str(), |()| "up").to_owned(),
        advice: answer.as_ref().err().map(|cause| health::advice(cause.kind()).to_owned()),
    };
    Json(Status {
        healthy: answer.is_ok() && not_in_force.is_none(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_seconds: running.uptime().as_secs(),
        policy: PolicyStatus {
            from: running.source().name(),
            since: rfc3339(in_force.since),
            current: not_in_force.is_none(),
            error: not_in_force.map(|why| why.drawn.clone()),
            budgets: policy.budgets.len(),
            routes: policy.routes.iter().count(),
            keys: in_force.keys.count(),
        },
        store,
        decisions: running.metrics().totals(),
    })
}
