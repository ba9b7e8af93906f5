//! The policy in force, and how another takes its place while requests run.
//!
//! A reload reads the files, checks them whole, builds everything that decides anew (over the same buckets and records,
//! the same connections to an upstream that stays, the same metrics) and swaps it in one step. Requests that run finish
//! under the policy that they began with. A file that is wrong changes nothing: the policy before stays in force, and
//! log, status and metrics say so.
//!
//! Where the program listens and where it keeps buckets cannot change while it runs. A policy in which one of these is
//! another is refused whole, so that what is in force is always one file, never a mixture of two.

mod metrics;
mod store_keys;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use admit::{Causes, Clock, MonotonicClock, SystemClock, Timestamp};
use admit_listen::Answers;
use admit_store::AnyStore;
use arc_swap::ArcSwap;
use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, IntoDiagnostic, Report, WrapErr, miette};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::Front;
use crate::bounds::Bounds;
use crate::certificates::Certificates;
use crate::engine::Store;
use crate::gateway::Gateway;
use crate::measured::Measured;
use crate::metrics::Metrics;
use crate::policy::{Keys, KeysFrom, Policy, Server};
use crate::source::{Content, Read, Source};
use crate::trace;
pub use metrics::ReloadMetrics;
use watch::Watch;

/// The most reloads that wait for one to end; who asks for more is told so.
const WAITING: usize = 16;
/// How often the store is asked for other API keys, if it has them, and a policy is tried again that the store could not
/// take. A key that was revoked holds no longer than this anywhere.
pub const STORE_INTERVAL: Duration = Duration::from_secs(10);
/// How wide a mistake is drawn.
const DRAWING_WIDTH: usize = 110;

/// A policy that decides, and what it decides on.
#[derive(Debug)]
pub struct InForce {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Its keys.
    pub keys: Arc<Keys>,
    /// The store, held to the policy's rules.
    pub store: AnyStore,
    /// The same, as requests are decided on it.
    pub leased: Store,
    /// Since when.
    pub since: Timestamp,
    /// What its files had.
    content: Content,
    answers: Answers,
    gateway: Option<Gateway>,
}

/// Why the files on the disk are not in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{drawn}")]
pub struct NotInForce {
    /// When that was found.
    pub since: Timestamp,
    /// What is wrong, drawn with its place.
    pub drawn: String,
}

/// What became of a reload that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// Another policy is in force.
    Taken,
    /// The files have what is in force.
    Unchanged,
}

/// Why a reload that was asked for did not take place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// The policy before stays in force.
    #[error(transparent)]
    NotInForce(Arc<NotInForce>),
    /// Too many wait, or the program ends.
    #[error("reloads are under way already, or the program ends; ask again")]
    Busy,
}

/// What is counted, and what requests take up.
type Shares<'s> = (&'s Metrics, &'s Bounds);

type Answer = Result<Reloaded, ReloadError>;

/// What runs: the policy in force, and how it got there. Clones share it.
#[derive(Clone, Debug)]
pub struct Running(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    source: Source,
    certificates: Certificates,
    in_force: ArcSwap<InForce>,
    not_in_force: ArcSwap<Option<Arc<NotInForce>>>,
    metrics: Metrics,
    bounds: Bounds,
    clock: MonotonicClock,
    started: Timestamp,
    asks: mpsc::Sender<oneshot::Sender<Answer>>,
}

/// Puts other policies in force, one after the other: to be [run](Reloader::run) beside the listeners.
#[derive(Debug)]
pub struct Reloader {
    running: Running,
    asks: mpsc::Receiver<oneshot::Sender<Answer>>,
    /// Heard from the start on: one that comes before reloads run would end the program.
    hangups: Signal,
    /// What the files had when they were last tried.
    tried: Content,
    /// Whether it was the store that could not take them.
    try_again: bool,
    store_interval: Duration,
}

impl Running {
    /// Puts the first policy in force, on a store that was opened with its rules.
    ///
    /// # Errors
    /// A report, if what was read is no policy, its keys cannot be read, its upstream cannot be spoken to, or signals cannot
    /// be received.
    pub async fn start(
        source: Source,
        read: Read,
        store: AnyStore,
        metrics: Metrics,
    ) -> Result<(Self, Reloader), Report> {
        let hangups = signal(SignalKind::hangup()).into_diagnostic()?;
        let (policy, keys) = read.policy?;
        let certificates = Certificates::load(&policy.server).into_diagnostic()?;
        let keys = store_keys::of(&policy, keys, &store, None).await?;
        let bounds = Bounds::default();
        let in_force = InForce::build(policy, keys, read.content, store, (&metrics, &bounds), None)?;
        let (asks, asked) = mpsc::channel(WAITING);
        metrics.reload.in_force(in_force.since);
        let clock = MonotonicClock::start();
        let running = Self(Arc::new(Shared {
            started: clock.now(),
            clock,
            source,
            in_force: ArcSwap::from_pointee(in_force),
            not_in_force: ArcSwap::from_pointee(None),
            metrics,
            bounds,
            certificates,
            asks,
        }));
        let reloader = Reloader {
            running: running.clone(),
            asks: asked,
            tried: read.content,
            try_again: false,
            store_interval: STORE_INTERVAL,
            hangups,
        };
        Ok((running, reloader))
    }

    /// Answers every request by the policy that is in force when it comes.
    pub fn answers(&self) -> Answers {
        let running = self.clone();
        Answers::new(move |request| {
            trace::request(request, |request| running.0.in_force.load().answers.answer(request))
        })
    }

    /// The policy in force.
    pub fn in_force(&self) -> Arc<InForce> {
        self.0.in_force.load_full()
    }

    /// Why what is on the disk is not in force; nothing if it is.
    pub fn not_in_force(&self) -> Option<Arc<NotInForce>> {
        self.0.not_in_force.load().as_ref().clone()
    }

    /// Where policies come from.
    pub fn source(&self) -> &Source {
        &self.0.source
    }

    /// How long it runs.
    pub fn uptime(&self) -> Duration {
        self.0.clock.now().since(self.0.started)
    }

    /// What the listeners are encrypted with.
    pub fn certificates(&self) -> &Certificates {
        &self.0.certificates
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Waits until no keyed request runs, whichever policy it came under: for a shutdown, after the listeners have ended.
    pub async fn idle(&self) {
        self.0.bounds.runs.idle().await;
    }

    /// What requests take up at once.
    pub fn bounds(&self) -> &Bounds {
        &self.0.bounds
    }

    /// What policies that follow one another share.
    fn shared(&self) -> Shares<'_> {
        (&self.0.metrics, &self.0.bounds)
    }

    /// Reads the files anew, and waits until what they have is in force.
    ///
    /// # Errors
    /// [`ReloadError`] if it is not.
    pub async fn reload(&self) -> Answer {
        let (reply, answer) = oneshot::channel();
        self.0.asks.try_send(reply).map_err(|_| ReloadError::Busy)?;
        answer.await.unwrap_or(Err(ReloadError::Busy))
    }
}

impl InForce {
    fn build(
        policy: Policy,
        keys: Keys,
        content: Content,
        store: AnyStore,
        shared: Shares<'_>,
        before: Option<&Self>,
    ) -> Result<Self, Report> {
        let kept = before.and_then(|before| before.gateway.as_ref());
        let gateway = match kept.filter(|gateway| gateway.is_to(&policy.server.upstream)) {
            Some(gateway) => Some(gateway.under(&policy)),
            None => Gateway::new(&policy, shared.0.clone()).into_diagnostic()?,
        };
        let (metrics, _) = shared;
        let measured = Measured::new(store.clone(), metrics.store.clone());
        let leased = match before {
            Some(before) => before.leased.over(measured, policy.leases()),
            None => metrics.leases.lease(measured, policy.leases()),
        };
        Ok(Self::of(Arc::new(policy), keys, content, (store, leased), shared, gateway))
    }

    /// The same with other keys.
    fn with_keys(&self, keys: Keys, shared: Shares<'_>) -> Self {
        let (policy, store) = (self.policy.clone(), (self.store.clone(), self.leased.clone()));
        let next = Self::of(policy, keys, self.content, store, shared, self.gateway.clone());
        Self { since: self.since, ..next }
    }

    fn of(
        policy: Arc<Policy>,
        keys: Keys,
        content: Content,
        (store, leased): (AnyStore, Store),
        (metrics, bounds): Shares<'_>,
        gateway: Option<Gateway>,
    ) -> Self {
        let keys = Arc::new(keys);
        let front = Front::over(policy.clone(), keys.clone(), leased.clone(), metrics.clone());
        let front = front.within(bounds.clone());
        let answers = match &gateway {
            Some(gateway) => front.forwards(gateway.clone()),
            None => front.decides(),
        };
        Self { policy, keys, store, leased, since: SystemClock.now(), content, answers, gateway }
    }

    /// What forwards requests, if the policy names an upstream.
    pub fn gateway(&self) -> Option<&Gateway> {
        self.gateway.as_ref()
    }
}

/// What asked for a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The files may have changed.
    Files,
    /// Somebody wants it.
    Asked,
    /// The store may be back.
    Again,
}

impl Reloader {
    /// Sets how often the store is asked. Default [`STORE_INTERVAL`].
    #[must_use]
    pub fn store_interval(mut self, interval: Duration) -> Self {
        self.store_interval = interval;
        self
    }

    /// Reloads when a file changed, at SIGHUP, and when it is asked for, until `shutdown` is cancelled.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut watch = Watch::start();
        if let Some(file) = self.running.source().file() {
            watch.follow(&[file.to_owned()]);
            watch.touch(); // It may have changed since it was read.
        }
        // One clock for both, which no event sets back.
        let mut ticks = tokio::time::interval(self.store_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (cause, reply) = tokio::select! {
                () = shutdown.cancelled() => return,
                Some(reply) = self.asks.recv() => (Cause::Asked, Some(reply)),
                Some(()) = self.hangups.recv() => (Cause::Asked, None),
                () = watch.changed() => (Cause::Files, None),
                _ = ticks.tick() => {
                    self.refresh_keys().await; // Whatever lies on the disk.
                    if !self.try_again {
                        continue;
                    }
                    (Cause::Again, None)
                }
            };
            let answer = self.reload(cause, &mut watch).await;
            if let Some(reply) = reply {
                let _ = reply.send(answer); // Who asked may have gone.
            }
        }
    }

    /// Takes the keys that the store has now. While it is away, those that are known stay.
    async fn refresh_keys(&self) {
        let before = self.running.in_force();
        if before.policy.server.keys != Some(KeysFrom::Store) {
            return;
        }
        let keys = match store_keys::read(&before.store).await {
            Ok(keys) if keys == *before.keys => return,
            Ok(keys) => keys,
            Err(error) => {
                tracing::warn!(error = %Causes(&error), "API keys were not read anew; those that are known stay");
                return;
            }
        };
        let count = keys.count();
        let next = before.with_keys(keys, self.running.shared());
        self.running.0.in_force.store(Arc::new(next));
        tracing::info!(keys = count, "the store has other API keys; they are in force");
    }

    async fn reload(&mut self, cause: Cause, watch: &mut Watch) -> Answer {
        let running = self.running.clone();
        let reading = tokio::task::spawn_blocking(move || running.source().read());
        let Ok(read) = reading.await else { return Err(ReloadError::Busy) }; // The runtime ends.
        watch.follow(&read.files);
        let before = self.running.in_force();
        if cause == Cause::Files && read.content == self.tried {
            return self.told(); // Something else in the directory changed.
        }
        self.tried = read.content;
        self.try_again = false;
        if read.content == before.content {
            self.running.0.not_in_force.store(Arc::new(None));
            self.running.0.metrics.reload.unchanged();
            tracing::info!(policy = self.running.source().name(), "the policy on the disk is in force");
            if cause == Cause::Asked {
                self.refresh_keys().await;
            }
            return Ok(Reloaded::Unchanged);
        }
        match self.next(read, &before).await {
            Ok(next) => {
                let (budgets, keys) = (next.policy.budgets.len(), next.keys.count());
                let stays =
                    |scope: &admit::Scope| next.policy.budgets.iter().any(|budget| budget.scope == *scope);
                for budget in before.policy.budgets.iter().filter(|budget| !stays(&budget.scope)) {
                    self.running.0.metrics.forget(&budget.scope);
                }
                self.running.0.metrics.reload.taken(next.since);
                self.running.0.in_force.store(Arc::new(next));
                self.running.0.not_in_force.store(Arc::new(None));
                tracing::info!(policy = self.running.source().name(), budgets, keys, "a policy is in force");
                Ok(Reloaded::Taken)
            }
            Err(report) => {
                let drawn = drawn(report.as_ref());
                tracing::error!(
                    policy = self.running.source().name(),
                    error = drawn,
                    "the policy on the disk is not taken; the one before stays in force"
                );
                self.running.0.metrics.reload.refused();
                let why = Arc::new(NotInForce { since: SystemClock.now(), drawn });
                self.running.0.not_in_force.store(Arc::new(Some(why)));
                if cause == Cause::Asked {
                    self.refresh_keys().await;
                }
                self.told()
            }
        }
    }

    /// What the last attempt came to.
    fn told(&self) -> Answer {
        self.running.not_in_force().map_or(Ok(Reloaded::Unchanged), |why| Err(ReloadError::NotInForce(why)))
    }

    async fn next(&mut self, read: Read, before: &InForce) -> Result<InForce, Report> {
        let (policy, keys) = read.policy?;
        if let Some(refusal) = needs_restart(&before.policy.server, &policy.server) {
            return Err(refusal);
        }
        let rules = policy.rules().into_diagnostic()?;
        let store = before.store.with_rules(rules).await.into_diagnostic();
        self.try_again = store.is_err();
        let store = store.wrap_err("the store does not take the policy's budgets; it is asked again")?;
        let keys = store_keys::of(&policy, keys, &store, Some(before)).await;
        self.try_again = keys.is_err();
        let next = InForce::build(policy, keys?, read.content, store, self.running.shared(), Some(before))?;
        self.running.0.certificates.reload(&next.policy.server).into_diagnostic()?; // Last, for it takes effect at once.
        Ok(next)
    }
}

/// What cannot change while the program runs.
fn needs_restart(before: &Server, after: &Server) -> Option<Report> {
    let way = |tls: bool| if tls { "encrypted" } else { "in the clear" }.to_owned();
    let tls = |name, before: bool, after: bool| (name, way(before), way(after), before == after);
    let members = [
        ("listen", before.listen.to_string(), after.listen.to_string(), before.listen == after.listen),
        ("admin", before.admin.to_string(), after.admin.to_string(), before.admin == after.admin),
        (
            "connections",
            before.connections.to_string(),
            after.connections.to_string(),
            before.connections == after.connections,
        ),
        ("store", before.store.to_string(), after.store.to_string(), before.store == after.store),
        tls("tls", before.tls.is_some(), after.tls.is_some()),
        tls("admin_tls", before.admin_tls.is_some(), after.admin_tls.is_some()),
    ];
    let (member, from, to, _) = members.into_iter().find(|(.., same)| !same)?;
    Some(miette!(
        help = "restart the program, or put the member back",
        "{member} cannot change while the program runs (it is {from}, and {to} in the file); nothing of the file is taken"
    ))
}

/// As a terminal without colours shows it.
fn drawn(report: &dyn Diagnostic) -> String {
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor());
    let mut text = String::new();
    match handler.with_width(DRAWING_WIDTH).render_report(&mut text, report) {
        Ok(()) => text.trim().to_owned(),
        Err(_) => report.to_string(),
    }
}
