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
    handles: Vec<Handle>,
    next: AtomicUsize,
    /// Dropped, they end the threads.
    _alive: Vec<oneshot::Sender<()>>,
}

impl Workers {
    /// One for each processor that this process may use.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn start() -> io::Result<Self> {
        let (mut handles, mut alive) = (Vec::new(), Vec::new());
        for index in 0..Self::count() {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (sender, dropped) = oneshot::channel();
            handles.push(runtime.handle().clone());
            alive.push(sender);
            std::thread::Builder::new().name(format!("admit-worker-{index}")).spawn(move || {
                INDEX.set(index);
                let _ = runtime.block_on(dropped); // Nothing is ever sent.
            })?;
        }
        Ok(Self(Arc::new(Threads { handles, next: AtomicUsize::new(0), _alive: alive })))
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

    /// One after the other.
    pub(crate) fn next(&self) -> Option<&Handle> {
        let next = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.0.handles.get(next % self.0.handles.len().max(1))
    }
}
