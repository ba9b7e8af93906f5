//! What is measured, a file for each kind of case.

mod envoy;
mod footprint;
mod large_table;
mod leased;
mod memory;
mod others;
mod postgres;
mod processes;
mod web;

use crate::case::Case;

/// All cases, in the order of the table.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = postgres::cases();
    cases.extend(leased::cases());
    cases.push(processes::case());
    cases.push(large_table::case());
    cases.extend(memory::cases());
    cases.push(footprint::case());
    cases.extend(web::cases());
    cases.push(envoy::case());
    cases.push(others::case());
    cases
}
