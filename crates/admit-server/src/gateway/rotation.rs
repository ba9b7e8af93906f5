//! Which upstream is asked: one after the other, and for a while none that could not be connected to.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use admit::{Clock, MonotonicClock};

use super::target::Target;

/// How long an upstream is left out that could not be connected to: long enough that not every request waits for it,
/// short enough that one which is back is soon used.
const LEFT_OUT: Duration = Duration::from_secs(5);

/// The upstreams, all of them alike.
#[derive(Debug)]
pub(super) struct Rotation {
    clock: MonotonicClock,
    members: Vec<Member>,
    next: AtomicUsize,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) target: Target,
    /// Until when it is left out, in µs of the clock.
    out_until: AtomicI64,
}

impl Rotation {
    pub(super) fn new(targets: Vec<Target>) -> Self {
        let member = |target| Member { target, out_until: AtomicI64::new(i64::MIN) };
        let members = targets.into_iter().map(member).collect();
        Self { clock: MonotonicClock::start(), members, next: AtomicUsize::new(0) }
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// In which order a request is tried on them, each once. Those that are left out come last: where there is no other,
    /// they are better than nothing.
    pub(super) fn order(&self) -> Vec<&Member> {
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.members.len().max(1);
        let now = self.clock.now().unix_micros();
        let (later, sooner) = self.members.split_at(first);
        let mut order: Vec<&Member> = sooner.iter().chain(later).collect();
        order.sort_by_key(|member| member.out_until.load(Ordering::Relaxed) > now);
        order
    }

    pub(super) fn leave_out(&self, member: &Member) {
        let until = self.clock.now().saturating_add(LEFT_OUT).unix_micros();
        member.out_until.store(until, Ordering::Relaxed);
    }
}
