//! Buckets leased to processes: a slice is debited ahead, and spent in memory.
//!
//! [`Leased`] stands in front of any store. Of the scopes that it is told to lease, each process debits slices of a bucket
//! ahead, in the one shared store, and grants from them without asking it. The law holds as before, whatever the number of
//! processes: over any window of length *t* no more is granted than `burst + rate·t`. What is given for the speed is that
//! **less** may be granted.
//!
//! ```
//! use admit::{BudgetStore, Charge, Key, Now, Rules, Scope};
//! use admit_store::leases::{Leased, Leases};
//! use admit_store::memory::MemoryStore;
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let ingest = Scope::from_static("ingest");
//! let shared = MemoryStore::new(Rules::new([ingest.clone()])?); // In a deployment, PostgreSQL.
//! let leases = Leases::new([(ingest.clone(), "5%".parse()?)]);
//! let (here, there) = (Leased::new(shared.clone(), leases.clone()), Leased::new(shared, leases));
//!
//! let charge = [Charge::one(ingest, Key::hashed("tenant"), "1000/hour".parse()?)];
//! let mut granted = 0;
//! for _ in 0..600 {
//!     granted += u32::from(here.take(&charge, Now::Store).await?.is_granted());
//!     granted += u32::from(there.take(&charge, Now::Store).await?.is_granted());
//! }
//! assert!((950..=1_000).contains(&granted)); // And a rate of one in 3.6 s.
//! assert!(here.counts().taken() < 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is held, and what lapses
//!
//! A process holds at most its [`Share`] of the burst of a bucket, and what was given back to it. Slices begin as large as a
//! cost and double while they are used up within a tenth of a second; one that lasts for more than a second, or lapses,
//! halves the next. So a bucket that is seldom asked for is not leased at all. What is held lapses when the bucket might be
//! full without it (`src/leases/holding.rs` has the proof, and why a slice is not given back to the store), and when the
//! process ends. [`Leased::held`] and [`Leased::counts`] tell. So at any time others lack, for each process, one share and what
//! was given back to it.
//!
//! # What differs
//!
//! - What is held covers **all of a take**, or the store is asked for all of it. A take with a charge that is not leased is the
//!   store's; and what is held here is not added to what is there.
//! - A **refusal** is always the store's own, with its level. A caller alone on its bucket that waits as told is granted. Its
//!   process, like others, may hold slices beside what the store has.
//! - **What is left** after a grant, and when, is what this process knows: the bucket as it was after its last debit, refilled
//!   since, and what it holds. What others took meanwhile it does not know.
//! - A **refund** goes to what is held here, if that has room; the rest lapses. It never reaches the store. So does what was
//!   granted to a caller that has gone: a take at the store goes on without it, in a task of the caller's runtime.
//! - Without a Tokio **runtime** nothing is debited ahead. For a slice that another runtime is to see to a caller waits half a
//!   second at most, as nobody may be running that. Several runtimes need their timers for it
//!   ([`enable_time`](tokio::runtime::Builder::enable_time)), as stores of production do anyway.
//! - A moment of the caller's ([`Now::At`]) is the clock that its slices go by. All callers of a bucket should then have one
//!   clock.
//!
//! # Where the bound is wider
//!
//! By no more than what other processes hold (each a share, and what was given back to it), and only once each time:
//!
//! - while processes disagree on a bucket's budget, and one of them has the higher rate: a rolling update that raises it;
//! - when the store's clock steps forward, or the machine of a process sleeps with its clock standing still;
//! - when an operator deletes a bucket: what is held elsewhere comes on top of the full one.
//!
//! Every process that takes from a leased scope must lease it too, or its refunds would reach the store. While that is being turned
//! on or off, in one process after the other, what is granted and not given back over a time *t* is at most `burst + rate·t` and what
//! was held when it began; no more than the first where nothing is refunded to the store.

mod asking;
mod counts;
mod demand;
mod holding;
mod latch;
mod lessor;
mod passed;
mod share;
mod slice;
mod table;
mod taking;

use std::fmt;
use std::sync::Arc;

use admit::{
    BudgetStore, Charge, Clock, Decision, Key, MonotonicClock, Now, Rules, Scope, TakeError, Unavailable,
};

use asking::Place;
pub use counts::Counts;
use holding::Moment;
pub use lessor::Lessor;
pub use share::{Leases, Share, ShareError};
use table::Table;

/// The most buckets of each scope that slices are held of, unless told otherwise: up to some 30 MB.
pub const DEFAULT_MAX_BUCKETS: usize = 65_536;

/// A store, some of whose scopes are leased. Clones share what is held.
///
/// Where no scope is leased, and for every other scope, it hands on what it is asked.
#[derive(Clone)]
pub struct Leased<S> {
    store: S,
    scopes: Arc<[LeasedScope]>,
    clock: Arc<dyn Clock>,
    counts: Counts,
}

#[derive(Clone, Debug)]
struct LeasedScope {
    scope: Scope,
    share: Share,
    table: Arc<Table>,
}

impl<S> fmt::Debug for Leased<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = self.scopes.iter().map(|leased| (&leased.scope, leased.share));
        f.debug_map().entries(shares).finish()
    }
}

impl<S: Lessor> Leased<S> {
    /// Leases scopes of this store. Those that it does not know are left out.
    pub fn new(store: S, leases: Leases) -> Self {
        Self::with(store, leases, MonotonicClock::start(), Counts::default())
    }

    /// The same by another clock than a [`MonotonicClock`], counted there. The clock must not run behind the store's by
    /// more than a fifth of the time that passes; what it shows at the start does not matter.
    pub fn with(store: S, leases: Leases, clock: impl Clock + 'static, counts: Counts) -> Self {
        let nothing = Self { store, scopes: Arc::new([]), clock: Arc::new(clock), counts };
        nothing.over(nothing.store.clone(), leases)
    }

    /// The same slices in front of another handle of the same buckets, with other leases. What is held of scopes that are
    /// leased no more lapses. Scopes that were leased before keep the most buckets that they had.
    #[must_use]
    pub fn over<T: Lessor>(&self, store: T, leases: Leases) -> Leased<T> {
        let known = &store.rules().scopes;
        let max = leases.max_buckets.unwrap_or(DEFAULT_MAX_BUCKETS);
        let scopes = leases.shares.into_iter().filter(|(scope, _)| known.contains(scope));
        let scopes = scopes.map(|(scope, share)| {
            let table = match self.leased(&scope) {
                Some(leased) => leased.table.clone(),
                None => Arc::new(Table::new(max, self.counts.clone())),
            };
            LeasedScope { scope, share, table }
        });
        let scopes = scopes.collect();
        Leased { scopes, store, clock: self.clock.clone(), counts: self.counts.clone() }
    }

    /// The store behind.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// What became of slices.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The tokens that this process holds now, of all buckets. Looks at each.
    pub fn held(&self) -> f64 {
        let now = self.clock.now();
        self.scopes.iter().map(|leased| leased.table.held(now)).sum()
    }

    /// Drops what is held of a bucket: for an operator who has it deleted.
    pub fn forget(&self, scope: &Scope, key: &Key) {
        if let Some(leased) = self.leased(scope) {
            leased.table.forget(key);
        }
    }

    fn leased(&self, scope: &Scope) -> Option<&LeasedScope> {
        let found = self.scopes.binary_search_by(|leased| leased.scope.cmp(scope)).ok()?;
        Some(&self.scopes[found])
    }

    fn moment(&self, now: Now) -> Moment {
        Moment { at: now.or_by(&*self.clock), given: now.given().is_some() }
    }

    fn place(&self, leased: &LeasedScope, line: &admit::Line) -> Place {
        let (table, clock) = (leased.table.clone(), self.clock.clone());
        Place { table, clock, key: line.key, budget: line.budget }
    }

    fn is_leased(&self, charges: &[Charge]) -> bool {
        !self.scopes.is_empty() && charges.iter().any(|charge| self.leased(&charge.scope).is_some())
    }
}

impl<S: Lessor> BudgetStore for Leased<S> {
    fn rules(&self) -> &Rules {
        self.store.rules()
    }

    async fn take(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        if let [charge] = charges
            && let Some(leased) = self.leased(&charge.scope)
            && let Some(granted) = self.spend(leased, charge, now)?
        {
            return Ok(granted);
        }
        match self.is_leased(charges) {
            true => self.ask(charges, now).await,
            false => self.store.take(charges, now).await,
        }
    }

    async fn peek(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        match self.is_leased(charges) {
            true => self.look(charges, now).await,
            false => self.store.peek(charges, now).await,
        }
    }

    async fn refund(&self, charges: &[Charge]) -> Result<(), TakeError> {
        match self.is_leased(charges) {
            true => self.give_back(charges).await,
            false => self.store.refund(charges).await,
        }
    }

    async fn delete_idle(&self, now: Now) -> Result<u64, Unavailable> {
        self.store.delete_idle(now).await
    }
}
