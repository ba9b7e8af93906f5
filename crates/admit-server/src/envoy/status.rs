//! How each descriptor stood.

use std::time::Duration;

use admit::{Budget, Standing, Wait};
use admit_tower::Quota;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::google::protobuf::Duration as Length;

use super::asked::Asked;

/// How one charge stood.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stood {
    /// It was granted, and these tokens are left.
    Left(f64),
    /// The take was refused; this charge may have fitted.
    Refused(Standing),
    /// No bucket was asked.
    Unasked,
}

impl Stood {
    fn wait(self) -> Option<Wait> {
        match self {
            Self::Refused(standing) => standing.wait,
            Self::Left(_) | Self::Unasked => None,
        }
    }

    fn tokens(self) -> Option<f64> {
        match self {
            Self::Left(tokens) => Some(tokens),
            Self::Refused(standing) => standing.level,
            Self::Unasked => None,
        }
    }
}

/// A status for each descriptor. Of several budgets it tells the one that refuses longest, else the one nearest to its end.
pub(super) fn statuses(asked: &Asked, stood: &[Stood]) -> Vec<DescriptorStatus> {
    let of = |descriptor: usize| {
        let lines = asked.lines.iter().zip(stood).filter(move |(line, _)| line.descriptor == descriptor);
        let nearest = lines.min_by(|(one, one_stood), (other, other_stood)| {
            let part = |quota: &Quota, stood: &Stood| {
                stood.tokens().map_or(f64::INFINITY, |tokens| tokens / quota.charge.budget.burst().tokens())
            };
            let longest_first = other_stood.wait().cmp(&one_stood.wait());
            longest_first.then(part(&one.quota, one_stood).total_cmp(&part(&other.quota, other_stood)))
        });
        match nearest {
            Some((line, stood)) => status(&line.quota, *stood),
            None => DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() }, // Held to nothing.
        }
    };
    (0..asked.descriptors).map(of).collect()
}

fn status(quota: &Quota, stood: Stood) -> DescriptorStatus {
    let code = if stood.wait().is_some() { Code::OverLimit } else { Code::Ok };
    let reset = match stood.wait() {
        Some(Wait::After(wait)) => Some(wait),
        Some(Wait::Never) => None,
        None => stood.tokens().map(|tokens| quota.time_until_full(tokens)),
    };
    DescriptorStatus {
        code: code.into(),
        current_limit: limit(quota),
        limit_remaining: stood.tokens().map_or(0, |tokens| tokens as u32), // Rounded down, and cut off.
        duration_until_reset: reset.map(length),
        ..DescriptorStatus::default()
    }
}

/// The limit, if the protocol can tell it: whole tokens that refill in one of its units.
fn limit(quota: &Quota) -> Option<RateLimit> {
    let budget: Budget = quota.charge.budget;
    let unit = match budget.time_to_fill().as_micros() {
        1_000_000 => Unit::Second,
        60_000_000 => Unit::Minute,
        3_600_000_000 => Unit::Hour,
        86_400_000_000 => Unit::Day,
        _ => return None,
    };
    let tokens = budget.burst().tokens();
    let fits = tokens.fract() == 0.0 && tokens <= f64::from(u32::MAX);
    fits.then(|| RateLimit {
        name: quota.name().to_owned(),
        requests_per_unit: tokens as u32,
        unit: unit.into(),
    })
}

fn length(duration: Duration) -> Length {
    Length {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default(), // Below 10⁹.
    }
}

#[cfg(test)]
mod tests {
    use admit::{Key, Scope};

    use super::*;

    fn quota(budget: &str) -> Quota {
        Quota::new(Scope::from_static("x"), Key::of("k"), budget.parse().unwrap(), "")
    }

    #[test]
    fn a_limit_is_told_only_if_a_unit_tells_it() {
        let told = |budget| limit(&quota(budget)).map(|limit| (limit.requests_per_unit, limit.unit()));
        assert_eq!(told("100/hour"), Some((100, Unit::Hour)));
        assert_eq!(told("10/second"), Some((10, Unit::Second)));
        assert_eq!(told("7/day"), Some((7, Unit::Day)));
        for untold in ["100/10s", "100/hour burst 20", "0.5/minute", "5000000000/minute"] {
            assert_eq!(told(untold), None, "{untold}");
        }
    }

    #[test]
    fn what_never_fits_has_no_reset() {
        let never = Stood::Refused(Standing { level: None, wait: Some(Wait::Never) });
        let status = status(&quota("1/hour"), never);
        assert_eq!((status.code(), status.duration_until_reset), (Code::OverLimit, None));
    }
}
