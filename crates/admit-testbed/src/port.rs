//! Free loopback ports.

use std::fs::{self, File};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::Context;

use crate::postgres_files::shared_dir;

/// Below the range from which the system takes ports for outgoing connections, on Linux and macOS.
const FIRST: u16 = 15_000;
const COUNT: u16 = 15_000;

/// A loopback port that is kept for one server until this is dropped, also while the server is stopped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Locked; other test processes skip the port.
    _reservation: File,
}

impl Port {
    /// A port on which nobody listens, on which no other test of this user counts.
    ///
    /// # Errors
    /// If there is none, or the reservation cannot be written.
    pub fn free() -> anyhow::Result<Self> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let dir = shared_dir()?.join("ports");
        fs::create_dir_all(&dir)?;
        let start = std::process::id().wrapping_mul(7_919) as u16; // Any number that differs between processes.
        for _ in 0..COUNT {
            let number = FIRST + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
            let file = File::create(dir.join(number.to_string())).context("cannot reserve a port")?;
            if file.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Ok(Self { number, _reservation: file });
            }
        }
        anyhow::bail!("no loopback port from {FIRST} to {} is free", FIRST + COUNT - 1)
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}
