//! Which upstream is asked: one after the other, and for a while none that could not be connected to.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use admit::{Clock, MonotonicClock, Timestamp};

use super::target::Target;

/// How long an upstream is left out that could not be connected to: long enough that not every request waits for it,
/// short enough that one which is back is soon used.
const LEFT_OUT: Duration = Duration::from_secs(5);

/// The moment of an upstream that is not left out.
const IN: i64 = i64::MIN;

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
    /// Until when it is left out, in µs of the clock; [`IN`] if it is not.
    out_until: AtomicI64,
}

impl Rotation {
    pub(super) fn new(targets: Vec<Target>) -> Self {
        let member = |target| Member { target, out_until: AtomicI64::new(IN) };
        let members = targets.into_iter().map(member).collect();
        Self { clock: MonotonicClock::start(), members, next: AtomicUsize::new(0) }
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// In which order a request is tried on them, each once. Those that are left out come last: where there is no other,
    /// they are better than nothing. When the time of one is over, a single request tries whether it is back.
    pub(super) fn order(&self) -> Vec<&Member> {
        self.order_at(self.clock.now())
    }

    fn order_at(&self, now: Timestamp) -> Vec<&Member> {
        if let [only] = &self.members[..] {
            return vec![only];
        }
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.members.len().max(1);
        let (later, sooner) = self.members.split_at(first);
        let mut order: Vec<&Member> = sooner.iter().chain(later).collect();
        let next = now.saturating_add(LEFT_OUT).unix_micros();
        order.sort_by_cached_key(|member| {
            let until = member.out_until.load(Ordering::Relaxed);
            let take =
                || member.out_until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed);
            match until {
                IN => 1,
                _ if until <= now.unix_micros() && take().is_ok() => 0, // This is the request that tries.
                _ => 2,
            }
        });
        order
    }

    /// True if it was not left out before.
    pub(super) fn leave_out(&self, member: &Member) -> bool {
        self.leave_out_at(member, self.clock.now())
    }

    fn leave_out_at(&self, member: &Member, now: Timestamp) -> bool {
        let until = now.saturating_add(LEFT_OUT).unix_micros();
        member.out_until.swap(until, Ordering::Relaxed) == IN
    }

    pub(super) fn take_in(&self, member: &Member) {
        // Looked at first, as each request comes here and they would take the value from one another.
        if member.out_until.load(Ordering::Relaxed) != IN
            && member.out_until.swap(IN, Ordering::Relaxed) != IN
        {
            tracing::info!(upstream = %member.target, "an upstream that was left out is back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::roots;
    use crate::policy::{UpstreamLimits, Upstreams};

    fn rotation() -> Rotation {
        let tls = roots::client_config(&Upstreams::default()).unwrap();
        let target = |url: &str| Target::new(&url.parse().unwrap(), &tls, &UpstreamLimits::default());
        Rotation::new(["http://a", "http://b", "http://c"].into_iter().filter_map(target).collect())
    }

    fn order(rotation: &Rotation, now: Timestamp) -> String {
        let names = rotation.order_at(now).into_iter().map(|member| member.target.to_string());
        names.map(|name| name.trim_start_matches("http://").to_owned()).collect()
    }

    #[test]
    fn one_request_tries_an_upstream_whose_time_is_over() {
        let (rotation, start) = (rotation(), Timestamp::MIN.saturating_add(LEFT_OUT));
        assert_eq!([(); 4].map(|()| order(&rotation, start)), ["abc", "bca", "cab", "abc"]);
        let [_, b, _] = rotation.members() else { panic!("there are three") };
        assert!(rotation.leave_out_at(b, start) && !rotation.leave_out_at(b, start), "it is told once");
        assert_eq!([(); 3].map(|()| order(&rotation, start)), ["cab", "cab", "acb"]);
        let over = start.saturating_add(LEFT_OUT);
        assert_eq!([(); 3].map(|()| order(&rotation, over)), ["bca", "cab", "acb"]);
        assert_eq!(order(&rotation, over.saturating_add(LEFT_OUT)), "bca");
        rotation.take_in(b);
        assert_eq!([(); 3].map(|()| order(&rotation, over)), ["cab", "abc", "bca"]);
        for member in rotation.members() {
            rotation.leave_out_at(member, over);
        }
        assert_eq!(order(&rotation, over).len(), 3, "they are better than nothing");
    }
}
