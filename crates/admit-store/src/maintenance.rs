//! Deleting what is over: idle buckets and expired records, on one replica at a time.

use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::pin;
use std::time::Duration;

use admit::{BudgetStore, Causes, IdempotencyStore, Now, TimeSource, Unavailable};
use tokio::time::MissedTickBehavior;

use crate::Leader;

/// The name of the leadership, and of the work in the log.
pub const SWEEP: &str = "rate-budget-sweep";

/// How often the sweep runs unless told otherwise: hourly. What is left over in between costs space and nothing else.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(3_600);

/// The shortest interval.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The sweep of one replica. Any number of replicas may run it; the one that leads sweeps.
///
/// ```
/// use admit::{Now, Rules, Scope};
/// use admit_store::AnyStore;
/// use admit_store::maintenance::Maintenance;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let rules = Rules::new([Scope::from_static("ingest")])?;
/// let store = AnyStore::open("memory:", rules).await?;
/// let maintenance = Maintenance::new(store);
/// assert!(maintenance.tick(Now::Store).await?.is_some()); // What the loop does every hour.
///
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let sweeping = tokio::spawn(maintenance.run(async { drop(stopped.await) }));
/// drop(stop);
/// sweeping.await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Maintenance<S> {
    store: S,
    interval: Duration,
    time: TimeSource,
    holder: String,
}

/// What one sweep deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    /// The fence of the leadership that it was done under.
    pub fence: i64,
    /// Buckets that nobody took from for longer than the retention.
    pub buckets: u64,
    /// Idempotency records whose time was over.
    pub records: u64,
}

impl<S: BudgetStore + IdempotencyStore + Leader> Maintenance<S> {
    /// An hourly sweep of `store`, by a holder with a name of its own.
    pub fn new(store: S) -> Self {
        let random = RandomState::new().build_hasher().finish(); // A new state is random.
        let holder = format!("{}-{random:016x}", std::process::id());
        Self { store, interval: DEFAULT_INTERVAL, time: TimeSource::Store, holder }
    }

    /// How often to sweep; at least a second.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval: interval.max(MIN_INTERVAL), ..self }
    }

    /// By which clock to sweep: the one that takes go by, or buckets in use would seem idle. Default: the store's.
    #[must_use]
    pub fn time(self, time: TimeSource) -> Self {
        Self { time, ..self }
    }

    /// Sweeps now and at every interval, until `shutdown` is ready. What fails is logged, and tried again at the next.
    ///
    /// The store's deletes come in batches, and none holds what a take needs for long; nothing waits for this loop.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let mut shutdown = pin!(shutdown);
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let sweep = async {
                ticks.tick().await;
                self.tick(self.time.now()).await
            };
            let swept = tokio::select! {
                biased;
                () = &mut shutdown => return,
                swept = sweep => swept,
            };
            match swept {
                Ok(Some(Swept { fence, buckets, records })) => {
                    tracing::info!(sweep = SWEEP, fence, buckets, records, "swept");
                }
                Ok(None) => tracing::debug!(sweep = SWEEP, "another replica leads"),
                Err(error) => tracing::warn!(
                    sweep = SWEEP,
                    error = %Causes(&error),
                    "the sweep failed and is tried again at the next interval"
                ),
            }
        }
    }

    /// One sweep, if this replica leads or can; nothing if another does.
    ///
    /// The leadership outlasts the interval, so that the replica that has it keeps it for as long as it lives. A sweep
    /// that runs into its successor's does no harm: both delete only what the next take would mint.
    ///
    /// # Errors
    /// [`Unavailable`] if the store failed; what was deleted until then stays deleted.
    pub async fn tick(&self, now: Now) -> Result<Option<Swept>, Unavailable> {
        let lease = self.interval.saturating_add(self.interval / 2);
        let Some(leadership) = self.store.lead(SWEEP, &self.holder, lease, now).await? else {
            return Ok(None);
        };
        let buckets = self.store.delete_idle(now).await?;
        let records = self.store.delete_expired(now).await?;
        Ok(Some(Swept { fence: leadership.fence, buckets, records }))
    }
}

#[cfg(feature = "memory")]
#[cfg(test)]
mod tests {
    use admit::idempotency::{Fingerprint, RecordKey, Terms};
    use admit::{Charge, Clock, Key, ManualClock, Rules, Scope, Timestamp};

    use super::*;
    use crate::memory::{Limits, MemoryStore};

    const A: Scope = Scope::from_static("a");

    fn store(clock: &ManualClock) -> MemoryStore {
        let rules = Rules::new([A]).unwrap();
        MemoryStore::with(rules, Limits::default(), clock.clone())
    }

    async fn use_store(store: &MemoryStore) {
        let charge = Charge::one(A, Key::hashed("k"), "1/hour".parse().unwrap());
        assert!(store.take(&[charge], Now::Store).await.unwrap().is_granted());
        let terms = Terms { ttl: Duration::from_secs(60), ..Terms::default() };
        let key = RecordKey::new("tenant", "POST", "/", "k");
        store.claim(&key, &Fingerprint::of(""), &terms, Now::Store).await.unwrap();
    }

    #[tokio::test]
    async fn one_replica_sweeps_until_it_stays_away() {
        let clock = ManualClock::at(Timestamp::MIN);
        let store = store(&clock);
        let (first, second) = (Maintenance::new(store.clone()), Maintenance::new(store.clone()));
        use_store(&store).await;
        assert_eq!(first.tick(Now::Store).await.unwrap(), Some(Swept { fence: 1, buckets: 0, records: 0 }));
        clock.advance(Duration::from_secs(3_600));
        assert_eq!(second.tick(Now::Store).await.unwrap(), None);
        assert_eq!(first.tick(Now::Store).await.unwrap(), Some(Swept { fence: 1, buckets: 0, records: 1 }));
        clock.advance(Duration::from_secs(5_400));
        assert_eq!(second.tick(Now::Store).await.unwrap(), Some(Swept { fence: 2, buckets: 1, records: 0 }));
        assert_eq!(first.tick(Now::Store).await.unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_loop_sweeps_at_every_interval_until_it_is_told_to_stop() {
        let clock = ManualClock::at(Timestamp::MIN);
        let store = store(&clock);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let sweeping = Maintenance::new(store.clone()).interval(Duration::from_secs(10));
        let sweeping = tokio::spawn(sweeping.run(async { drop(stopped.await) }));
        use_store(&store).await;
        clock.set(clock.now().saturating_add(Duration::from_secs(7_200)));
        let mut ticks = tokio::time::interval(Duration::from_secs(10));
        while store.bucket_count() > 0 {
            ticks.tick().await; // The paused clock goes on by itself; the test's time limit is the bound.
        }
        drop(stop);
        sweeping.await.unwrap();
    }
}
