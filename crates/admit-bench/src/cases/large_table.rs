//! Takes on PostgreSQL from a table of ten million buckets, against ten thousand.

use admit_testbed::Postgres;
use anyhow::Result;
use tokio::runtime::Handle;

use crate::case::{Bar, Case, Measure, Peer, Promise, Side, Sides, Unit};
use crate::load::callers::Callers;
use crate::load::limiter::{fresh_salt, keys};
use crate::postgres::{SETTINGS, store};

const MEASURES: &[Measure] = &[Measure::new("time a take", Unit::Microseconds)];

const MANY: u64 = 10_000_000;
const FEW: u64 = 10_000;
const CALLERS: usize = 64;

/// Room for the table, as a server that has one would have; and no checkpoint while it is measured: after each one the
/// first change of a page writes all of it to the log, which in so short a time would be nearly every take.
const ROOM: [&str; 3] = ["shared_buffers=2GB", "max_wal_size=40GB", "checkpoint_timeout=1h"];

const FILL: &str = include_str!("large_table.sql");

pub(super) fn case() -> Case {
    Case {
        name: "PostgreSQL, 10,000,000 rows, 64 callers".to_owned(),
        measures: MEASURES,
        promise: Promise::Exact,
        quick: false,
        sides: Box::new(sides),
    }
}

fn sides(runtime: &Handle) -> Result<Sides> {
    let server = Postgres::with_settings(SETTINGS.into_iter().chain(ROOM))?;
    let side = |rows: u64| -> Result<Box<dyn Side>> {
        let database = format!("rows_{rows}");
        server.psql(&format!("CREATE DATABASE {database}"))?;
        let store = runtime.block_on(store(&server.url_for(&database)))?;
        let salt = fresh_salt();
        let values = [("SALT", salt), ("ROWS", rows)];
        let fill =
            values.iter().fold(FILL.to_owned(), |sql, (name, value)| sql.replace(name, &value.to_string()));
        server.psql_in(&database, &fill)?;
        Ok(Box::new(Callers::new(store, CALLERS, keys(salt, rows), runtime).latency()))
    };
    let ours = side(MANY)?;
    let peers = vec![Peer::new("10,000 rows", Some(Bar::AtMost(1.3)), side(FEW))];
    Ok(Sides { ours, peers, servers: Box::new(WithoutCheckpoints(server)) })
}

/// Not a bare server, which would be told to make a checkpoint before each run.
struct WithoutCheckpoints(#[allow(dead_code)] Postgres); // Kept until the case is over.
