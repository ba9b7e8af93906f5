//! The fleet API over real HTTP, on SQLite and on PostgreSQL, with the clock in the test's hand.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// Makes a test for each store of each function that takes a fleet's settings and its place.
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        $(
            mod $name {
                #[tokio::test]
                async fn sqlite() {
                    super::$name(crate::place::Place::sqlite()).await;
                }

                #[tokio::test]
                async fn postgres() {
                    super::$name(crate::place::Place::postgres()).await;
                }
            }
        )*
    };
}

mod boundaries;
mod client;
mod guide;
mod ingest;
mod ingest_bodies;
mod outage;
mod place;
mod process;
mod secret_reads;
mod session_replays;
mod sessions;
mod surface;
