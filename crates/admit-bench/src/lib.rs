//! Admit side by side with its peers.
//!
//! Each bench runs Admit and the peer it is compared with in one run on one machine; what counts is their ratio.
//! `cargo bench -p admit-bench` runs all of them.
