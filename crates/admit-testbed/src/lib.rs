//! Throw-away servers for tests: real ones, each with a directory, a socket and a loopback port of its own.
//!
//! A server is gone when its handle is dropped, also when the test panics, and when the test process is killed (see
//! [`Home`]). Tests may run in parallel, in one process or in many. Everything works as root (servers that refuse root
//! run as uid 65534) and as a normal user.
//!
//! ```no_run
//! let postgres = admit_testbed::Postgres::fast()?;
//! assert_eq!(postgres.psql("SELECT 1 + 1")?, "2");
//! println!("connect to {}", postgres.url());
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! The servers trust every local connection. A further kind of server is a further file beside `pgbouncer.rs`: a
//! [`Home`], a [`Port`] and a [`Daemon`].

mod daemon;
mod home;
mod pgbouncer;
mod port;
mod postgres;
mod postgres_files;
mod programs;
mod proxy;

pub use daemon::Daemon;
pub use home::Home;
pub use pgbouncer::PgBouncer;
pub use port::Port;
pub use postgres::{Postgres, Shutdown};
pub use programs::{PostgresPrograms, Programs, python_dir, target_dir, tools_dir};
pub use proxy::{Proxy, ProxyServer};
