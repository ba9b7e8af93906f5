//! What waits for the statement in flight: in order, bounded, and driven by one task at a time.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use admit::{Now, Take};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The most lines of one statement, unless a single take has more: some 40 ms of the server's work.
const MAX_LINES: usize = 4_096;

/// Operations in the order in which they came.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    max: usize,
}

struct State<T> {
    waiting: VecDeque<T>,
    /// How many have left it, ever.
    begun: u64,
    /// Whether a task takes from it.
    driven: bool,
}

/// There is no room. Nothing was queued.
#[derive(Debug, thiserror::Error)]
#[error("{max} operations wait already")]
pub(super) struct QueueFull {
    max: usize,
}

/// Why a caller waits no longer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TooLong {
    #[error("the statements before it took longer than {0:?}")]
    ToBegin(Duration),
    #[error("no connection was free within {0:?} to fetch the response")]
    WithoutConnection(Duration),
    /// It may never be taken, as by a drive in a runtime that nobody runs.
    #[error("no answer came within {0:?} of its turn")]
    ToEnd(Duration),
}

/// Where an operation came in the order of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position(u64);

/// How long a caller waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    /// For those before it.
    pub(super) to_begin: Duration,
    /// For its own statement, after that, and a look before it.
    pub(super) to_end: Duration,
}

/// Who has it takes from the queue until [`Queue::next`] gives nothing.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Drive(());

impl<T> Queue<T> {
    pub(super) fn new(max: usize) -> Self {
        Self { state: Mutex::new(State { waiting: VecDeque::new(), begun: 0, driven: false }), max }
    }

    /// Adds an operation. If nobody drives, the caller has to see to it.
    pub(super) fn push(&self, operation: T) -> Result<(Position, Option<Drive>), QueueFull> {
        let mut state = self.lock();
        if state.waiting.len() >= self.max {
            return Err(QueueFull { max: self.max });
        }
        let position = Position(state.begun + state.waiting.len() as u64);
        state.waiting.push_back(operation);
        let drives = !std::mem::replace(&mut state.driven, true);
        Ok((position, drives.then_some(Drive(()))))
    }

    /// Adds again, behind all that wait, what was taken and not done. There is room for it always, as it was let in before: the
    /// queue may be longer than its bound by what statements in flight put back. If nobody drives, the caller has to see to it.
    pub(super) fn put_back(&self, operations: Vec<T>) -> Option<Drive> {
        if operations.is_empty() {
            return None;
        }
        let mut state = self.lock();
        state.waiting.extend(operations);
        let drives = !std::mem::replace(&mut state.driven, true);
        drives.then_some(Drive(()))
    }

    /// Whether an operation was taken from the queue.
    fn has_begun(&self, position: Position) -> bool {
        position.0 < self.lock().begun
    }

    /// What an operation comes to, if it begins and ends in time.
    pub(super) async fn answer<A>(
        &self,
        position: Position,
        answer: &mut oneshot::Receiver<A>,
        waits: Waits,
    ) -> Result<Result<A, oneshot::error::RecvError>, TooLong> {
        match timeout(waits.to_begin, &mut *answer).await {
            Ok(answer) => Ok(answer),
            Err(_) if !self.has_begun(position) => Err(TooLong::ToBegin(waits.to_begin)),
            Err(_) => timeout(waits.to_end, answer).await.map_err(|_| TooLong::ToEnd(waits.to_end)),
        }
    }

    /// Lets those callers come that are ready to, up to `max`: most were woken by the answers of the statement before.
    pub(super) async fn gather(&self, max: usize) {
        let mut waiting = 0;
        loop {
            tokio::task::yield_now().await;
            let now = self.len();
            if now == waiting || now >= max {
                return;
            }
            waiting = now;
        }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Takes the operations from the front for which `joins` holds. If none waits, the drive is over.
    fn next(&self, drive: Drive, mut joins: impl FnMut(&T) -> bool) -> Option<(Drive, Vec<T>)> {
        let mut state = self.lock();
        if state.waiting.is_empty() {
            state.driven = false;
            return None;
        }
        let count = state.waiting.iter().take_while(|operation| joins(operation)).count().max(1);
        state.begun += count as u64;
        Some((drive, state.waiting.drain(..count).collect()))
    }

    /// Takes those at the front that are of one moment, up to `max`, and no more lines than one statement may have.
    pub(super) fn next_of_one_moment(
        &self,
        drive: Drive,
        max: usize,
        of: impl Fn(&T) -> (&Take, Now),
    ) -> Option<(Drive, Vec<T>)> {
        let (mut first, mut operations, mut lines) = (None, 0, 0);
        self.next(drive, |operation| {
            let (take, now) = of(operation);
            operations += 1;
            lines += take.lines().len();
            operations <= max && lines <= MAX_LINES && *first.get_or_insert(now) == now
        })
    }

    /// Ends a drive that was cut short, and gives what nobody will come for.
    pub(super) fn abandon(&self) -> Vec<T> {
        let mut state = self.lock();
        state.driven = false;
        state.begun += state.waiting.len() as u64;
        state.waiting.drain(..).collect()
    }

    /// Nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a statement that did not end it was told that those before it took long.
    #[tokio::test]
    async fn a_caller_is_told_what_took_too_long() {
        let queue = Queue::new(1);
        let (position, drive) = queue.push(()).unwrap();
        let waits = Waits { to_begin: Duration::ZERO, to_end: Duration::from_millis(1) };
        let (_caller, mut answer) = oneshot::channel::<()>();
        assert_eq!(queue.answer(position, &mut answer, waits).await, Err(TooLong::ToBegin(waits.to_begin)));
        assert!(queue.next(drive.unwrap(), |()| true).is_some());
        assert_eq!(queue.answer(position, &mut answer, waits).await, Err(TooLong::ToEnd(waits.to_end)));
    }

    /// What was put back has its turn again behind those that wait, also when nobody drives.
    #[test]
    fn what_is_put_back_is_done_last() {
        let queue = Queue::new(2);
        let drive = queue.push(1).unwrap().1.unwrap();
        let (drive, taken) = queue.next(drive, |_| true).unwrap();
        assert_eq!((queue.push(2).unwrap().1, queue.push(3).unwrap().1), (None, None));
        assert_eq!(queue.put_back(taken), None);
        assert!(queue.push(4).is_err());
        let (drive, batch) = queue.next(drive, |_| true).unwrap();
        assert_eq!(batch, [2, 3, 1]);
        assert!(queue.next(drive, |_| true).is_none());
        assert!(queue.put_back(batch).is_some());
    }

    #[test]
    fn one_drives_at_a_time_and_nothing_is_left_behind() {
        let queue = Queue::new(3);
        let (first, drive) = queue.push(1).unwrap();
        let drive = drive.unwrap();
        assert_eq!(queue.push(2).unwrap().1, None);
        let (last, nobody) = queue.push(9).unwrap();
        assert_eq!(nobody, None);
        assert_eq!(queue.push(3).unwrap_err().to_string(), "3 operations wait already");
        let (drive, batch) = queue.next(drive, |&operation| operation < 9).unwrap();
        assert_eq!(batch, [1, 2]);
        assert_eq!([first, last].map(|position| queue.has_begun(position)), [true, false]);
        let (drive, batch) = queue.next(drive, |_| false).unwrap();
        assert_eq!(batch, [9], "the first always goes");
        assert!(queue.has_begun(last));
        assert!(queue.next(drive, |_| true).is_none());
        assert!(queue.push(4).unwrap().1.is_some());
    }

    /// All interleavings, at random, of callers that come, of the task that runs what waits, and of its sudden end; of batches that
    /// are put back, and of drives that are handed on by a task which has a batch still: either may begin another drive.
    #[test]
    fn no_interleaving_loses_an_operation() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};

        use shuttle::rand::{Rng, thread_rng};
        use shuttle::thread::{JoinHandle, spawn, yield_now};

        const CALLERS: usize = 3;
        const EACH: usize = 3;

        #[derive(Clone, Copy, PartialEq)]
        enum Model {
            Plain,
            EndsSuddenly,
            PutsBackAndHandsOn,
        }

        struct Seen {
            model: Model,
            queue: Queue<(usize, usize)>,
            done: Mutex<Vec<(usize, usize)>>,
            lost: AtomicUsize,
            drivers: AtomicUsize,
            threads: Mutex<Vec<JoinHandle<()>>>,
        }

        fn begin(seen: &Arc<Seen>, begun: Option<Drive>) {
            if let Some(begun) = begun {
                let driven = seen.clone();
                let driver = spawn(move || drive(&driven, begun));
                seen.threads.lock().unwrap().push(driver);
            }
        }

        fn drive(seen: &Arc<Seen>, mut drive: Drive) {
            let at_random = |model| seen.model == model && thread_rng().gen_bool(0.5);
            assert_eq!(seen.drivers.fetch_add(1, Ordering::SeqCst), 0, "two drive at a time");
            loop {
                yield_now();
                if at_random(Model::EndsSuddenly) {
                    seen.drivers.fetch_sub(1, Ordering::SeqCst);
                    seen.lost.fetch_add(seen.queue.abandon().len(), Ordering::SeqCst);
                    return;
                }
                // In one step with the end of the drive: another may begin at once.
                let last = seen.drivers.fetch_sub(1, Ordering::SeqCst);
                let Some((going_on, batch)) = seen.queue.next(drive, |operation| operation.1 % 2 == 0) else {
                    return;
                };
                let going_on = match at_random(Model::PutsBackAndHandsOn) {
                    true => {
                        begin(seen, Some(going_on));
                        None
                    }
                    false => {
                        seen.drivers.store(last, Ordering::SeqCst);
                        Some(going_on)
                    }
                };
                yield_now();
                match at_random(Model::PutsBackAndHandsOn) {
                    true => begin(seen, seen.queue.put_back(batch)),
                    false => seen.done.lock().unwrap().extend(batch),
                }
                match going_on {
                    Some(going_on) => drive = going_on,
                    None => return,
                }
            }
        }

        fn model(model: Model) {
            let seen = Arc::new(Seen {
                model,
                queue: Queue::new(CALLERS * EACH),
                done: Mutex::default(),
                lost: AtomicUsize::default(),
                drivers: AtomicUsize::default(),
                threads: Mutex::default(),
            });
            let callers: Vec<_> = (0..CALLERS)
                .map(|caller| {
                    let seen = seen.clone();
                    spawn(move || {
                        for turn in 0..EACH {
                            begin(&seen, seen.queue.push((caller, turn)).unwrap().1);
                            yield_now();
                        }
                    })
                })
                .collect();
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            // A driver that is not joined yet may begin another.
            while let Some(driver) = { seen.threads.lock().unwrap().pop() } {
                driver.join().unwrap();
            }
            let mut done = seen.done.lock().unwrap().clone();
            assert_eq!(done.len() + seen.lost.load(Ordering::SeqCst), CALLERS * EACH);
            assert_eq!(seen.queue.len(), 0);
            for caller in (0..CALLERS).filter(|_| model != Model::PutsBackAndHandsOn) {
                let turns: Vec<_> = done.iter().filter(|one| one.0 == caller).map(|one| one.1).collect();
                assert!(turns.is_sorted(), "{turns:?} of caller {caller} came in another order");
            }
            done.sort_unstable();
            done.dedup();
            assert_eq!(
                done.len() + seen.lost.load(Ordering::SeqCst),
                CALLERS * EACH,
                "something was done twice"
            );
        }

        shuttle::check_random(|| model(Model::Plain), 5_000);
        shuttle::check_random(|| model(Model::EndsSuddenly), 5_000);
        shuttle::check_random(|| model(Model::PutsBackAndHandsOn), 5_000);
    }
}
