//! Threads that serve connections, each by itself.
//!
//! A request that waits for a service behind passes between two tasks, that of its connection and that of the connection to
//! the service. On a runtime of several threads each such step may wake another thread, which costs more than the
//! step. Here all tasks of a connection are on one thread, and its connections to services are that thread's.

use std::cell::Cell;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Where it is not known how many threads run at once.
const DEFAULT_THREADS: usize = 2;

thread_local! {
    static INDEX: Cell<usize> = const { Cell::new(0) };
}

/// Threads that serve connections. They end when the last clone is dropped; tasks that run on them then are cut off.
#[derive(Clone, Debug)]
pub struct Workers(Arc<Threads>);

#[derive(Debug)]
struct Threads {
    all: Vec<Thread>,
    /// Where the next search begins.
    next: AtomicUsize,
}

#[derive(Debug)]
struct Thread {
    runtime: Handle,
    /// How many connections it has.
    open: Arc<AtomicUsize>,
    /// Dropped, it ends the thread.
    _alive: oneshot::Sender<()>,
}

/// A connection of a thread, until it is dropped.
pub(crate) struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Workers {
    /// One for each processor that this process may use.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn start() -> io::Result<Self> {
        let mut all = Vec::new();
        for index in 0..Self::count() {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (sender, dropped) = oneshot::channel();
            all.push(Thread { runtime: runtime.handle().clone(), open: Arc::default(), _alive: sender });
            std::thread::Builder::new().name(format!("admit-worker-{index}")).spawn(move || {
                INDEX.set(index);
                let _ = runtime.block_on(dropped); // Nothing is ever sent.
            })?;
        }
        Ok(Self(Arc::new(Threads { all, next: AtomicUsize::new(0) })))
    }

    /// How many there are: always as many as when this was first asked.
    pub fn count() -> usize {
        static COUNT: LazyLock<usize> =
            LazyLock::new(|| std::thread::available_parallelism().map_or(DEFAULT_THREADS, NonZeroUsize::get));
        *COUNT
    }

    /// Which of them this thread is, below [`Workers::count`]; 0 for every other thread.
    pub fn index() -> usize {
        INDEX.get()
    }

    /// One with the fewest connections; of several such, one after the other.
    pub(crate) fn least_busy(&self) -> Option<(&Handle, Open)> {
        let (before, from) =
            self.0.all.split_at(self.0.next.fetch_add(1, Ordering::Relaxed) % self.0.all.len().max(1));
        let thread = from.iter().chain(before).min_by_key(|thread| thread.open.load(Ordering::Relaxed))?;
        thread.open.fetch_add(1, Ordering::Relaxed);
        Some((&thread.runtime, Open(thread.open.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They went to one after the other, so that of two processors one had all that stayed, where each other one was short.
    #[test]
    fn connections_that_stay_are_spread_whatever_comes_between() {
        let workers = Workers::start().unwrap();
        let stay = || {
            drop(workers.least_busy());
            workers.least_busy().unwrap().1
        };
        let open: Vec<Open> = (0..Workers::count()).map(|_| stay()).collect();
        let counts = || workers.0.all.iter().map(|thread| thread.open.load(Ordering::Relaxed));
        assert!(counts().all(|count| count == 1), "{:?}", counts().collect::<Vec<_>>());
        drop(open);
        assert!(counts().all(|count| count == 0));
    }
}
