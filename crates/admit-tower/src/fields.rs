//! The response fields that tell a client how it stands with its budgets.
//!
//! They are written here rather than by a library of structured fields (RFC 9651), as each granted response has two: a scope
//! has no character that is escaped, and the numbers are within the range of an integer. A test reads them with the library.

use std::fmt::Write;

use admit::{Few, Grant, Refusal, Wait};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::quota::whole_seconds;
use crate::{Quota, Refused};

/// The form in which clients are told how they stand. `Retry-After` is apart from it: every refusal that a wait would
/// mend has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `RateLimit-Policy` and `RateLimit` as in draft-ietf-httpapi-ratelimit-headers-11, on granted responses and on
    /// refusals: `q` the [whole tokens](Quota::whole_tokens) of the burst, `w` the seconds in which they refill, `r` the
    /// whole tokens left, `t` the seconds until the bucket is full. A refusal names the policies that it violates, and
    /// `t` is their wait. Of several quotas with one scope, which are one policy, the field tells that with the fewest
    /// tokens or the longest wait: no policy may stand there twice.
    #[default]
    Draft11,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (seconds from now, never an epoch), of the
    /// quota that is nearest to its end.
    Legacy,
    /// No fields.
    None,
}

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// How a client stands with one quota.
struct Level<'a> {
    quota: &'a Quota,
    tokens: f64,
    /// Seconds until it is full, or until the refused charge fits.
    seconds: u64,
    /// Of several of one policy, that with the least is told.
    rank: f64,
}

impl Dialect {
    /// The fields of a response to a request that was granted.
    pub fn granted(self, quotas: &[Quota], grant: &Grant) -> HeaderMap {
        let mut headers = HeaderMap::new();
        self.mark_granted(&mut headers, quotas.iter().zip(grant.left.iter().copied()));
        headers
    }

    /// Adds the fields of a granted take to a response, which may have those of another: lists are joined, and of single
    /// values the response's own stay.
    pub(crate) fn mark_granted<'q>(
        self,
        response: &mut HeaderMap,
        debits: impl Iterator<Item = (&'q Quota, Option<f64>)> + Clone,
    ) {
        let levels = debits.clone().filter_map(|(quota, left)| {
            let tokens = left?;
            let seconds = whole_seconds(quota.time_until_full(tokens));
            Some(Level { quota, tokens, seconds, rank: tokens })
        });
        self.mark(response, debits.map(|(quota, _)| quota), levels);
    }

    /// The fields of a refusal.
    pub fn refused(self, refused: &Refused) -> HeaderMap {
        let Refused { quotas, refusal: Refusal { standings, .. } } = refused;
        let levels = quotas.iter().zip(standings).filter_map(|(quota, standing)| {
            let Some(Wait::After(wait)) = standing.wait else { return None };
            let rank = -wait.as_secs_f64();
            Some(Level { quota, tokens: standing.level?, seconds: whole_seconds(wait).max(1), rank })
        });
        let mut headers = HeaderMap::new();
        self.mark(&mut headers, quotas.iter(), levels);
        headers
    }

    fn mark<'q>(
        self,
        headers: &mut HeaderMap,
        quotas: impl Iterator<Item = &'q Quota> + Clone,
        levels: impl Iterator<Item = Level<'q>>,
    ) {
        match self {
            Self::Draft11 => {
                let levels = one_for_each_policy(levels);
                for (name, list) in
                    [(RATELIMIT_POLICY, policies(quotas, &levels)), (RATELIMIT, limits(&levels))]
                {
                    // A list of nothing is no field.
                    if let Some(value) = HeaderValue::try_from(list).ok().filter(|value| !value.is_empty()) {
                        headers.append(name, value);
                    }
                }
            }
            Self::Legacy => {
                let left = |level: &Level<'_>| level.tokens / level.quota.charge.budget.burst().tokens();
                if let Some(nearest) = levels.min_by(|a, b| left(a).total_cmp(&left(b))) {
                    for (name, number) in [
                        (X_RATELIMIT_LIMIT, nearest.quota.whole_tokens()),
                        (X_RATELIMIT_REMAINING, nearest.tokens as u64),
                        (X_RATELIMIT_RESET, nearest.seconds),
                    ] {
                        headers.entry(name).or_insert_with(|| number.into());
                    }
                }
            }
            Self::None => {}
        }
    }
}

fn one_for_each_policy<'q>(levels: impl Iterator<Item = Level<'q>>) -> Few<Level<'q>> {
    let mut told: Few<Level<'q>> = Few::new();
    for level in levels {
        match told.iter_mut().find(|known| known.quota.name() == level.quota.name()) {
            Some(known) if level.rank < known.rank => *known = level,
            Some(_) => {}
            None => told.push(level),
        }
    }
    told
}

fn policies<'q>(quotas: impl Iterator<Item = &'q Quota> + Clone, told: &[Level<'_>]) -> String {
    let mut list = String::with_capacity(LIST_BYTES);
    for (i, quota) in quotas.clone().enumerate() {
        if quotas.clone().take(i).any(|known| known.name() == quota.name()) {
            continue;
        }
        let level = told.iter().find(|level| level.quota.name() == quota.name());
        let quota = level.map_or(quota, |level| level.quota);
        member(&mut list, quota, [('q', quota.whole_tokens()), ('w', quota.window_seconds())]);
    }
    list
}

fn limits(levels: &[Level<'_>]) -> String {
    let mut list = String::with_capacity(LIST_BYTES);
    for level in levels {
        member(&mut list, level.quota, [('r', level.tokens as u64), ('t', level.seconds)]); // Rounded down.
    }
    list
}

/// Room for a list of one policy, in bytes; it grows.
const LIST_BYTES: usize = 48;

/// Adds a member to a list. Numbers beyond the range of an integer are cut off.
fn member(list: &mut String, quota: &Quota, parameters: [(char, u64); 2]) {
    let [(first, one), (second, other)] =
        parameters.map(|(name, number)| (name, number.min(Quota::MAX_TOLD)));
    let comma = if list.is_empty() { "" } else { ", " };
    let name = quota.name();
    let _ = write!(list, "{comma}\"{name}\";{first}={one};{second}={other}"); // Writing to a String does not fail.
}

#[cfg(test)]
mod tests {
    use admit::{Budget, Key, Scope, Standing, Timestamp};
    use std::time::Duration;

    use super::*;

    fn quotas() -> Vec<Quota> {
        let quota = |scope, budget: &str| {
            Quota::new(Scope::from_static(scope), Key::of("k"), budget.parse::<Budget>().unwrap(), "reason")
        };
        vec![quota("ingest", "100/hour"), quota("burst", "10/second")]
    }

    fn lines(headers: &HeaderMap) -> Vec<String> {
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn a_grant_tells_what_is_left_rounded_down_and_when_it_is_full() {
        let grant = Grant { at: Some(Timestamp::MIN), left: [Some(98.9), None].into() };
        assert_eq!(
            lines(&Dialect::Draft11.granted(&quotas(), &grant)),
            [
                r#"ratelimit-policy: "ingest";q=100;w=3600, "burst";q=10;w=1"#,
                r#"ratelimit: "ingest";r=98;t=40"#
            ]
        );
        let grant = Grant { at: Some(Timestamp::MIN), left: [Some(90.0), Some(1.0)].into() };
        assert_eq!(
            lines(&Dialect::Legacy.granted(&quotas(), &grant)),
            ["x-ratelimit-limit: 10", "x-ratelimit-remaining: 1", "x-ratelimit-reset: 1"]
        );
        assert!(Dialect::None.granted(&quotas(), &grant).is_empty());
    }

    #[test]
    fn a_library_of_structured_fields_reads_and_writes_them_alike() {
        let grant = Grant { at: Some(Timestamp::MIN), left: [Some(98.9), Some(f64::MAX)].into() };
        for field in Dialect::Draft11.granted(&quotas(), &grant).values() {
            let list: sfv::List = sfv::Parser::new(field.as_bytes()).parse().unwrap();
            assert_eq!(list.len(), 2);
            assert_eq!(sfv::FieldType::serialize(&list).unwrap(), field.to_str().unwrap());
        }
    }

    #[test]
    fn a_refusal_tells_the_violated_policies_and_their_wait() {
        let wait = Some(Wait::After(Duration::from_micros(46_000_001)));
        let standings =
            [Standing { level: Some(0.2), wait }, Standing { level: Some(9.0), wait: None }].into();
        let refused = Refused { quotas: quotas(), refusal: Refusal { at: None, standings } };
        assert_eq!(
            lines(&Dialect::Draft11.refused(&refused)),
            [
                r#"ratelimit-policy: "ingest";q=100;w=3600, "burst";q=10;w=1"#,
                r#"ratelimit: "ingest";r=0;t=47"#
            ]
        );
    }

    /// Once such a policy stood in the fields twice, which the draft forbids.
    #[test]
    fn of_the_quotas_of_one_policy_one_is_told() {
        let quota = |key, budget: &str| {
            Quota::new(Scope::from_static("x"), Key::of(key), budget.parse().unwrap(), "reason")
        };
        let quotas = vec![quota("user", "10/minute"), quota("team", "60/minute"), quota("all", "90/minute")];
        let grant = Grant { at: Some(Timestamp::MIN), left: [Some(9.0), Some(2.0), Some(2.0)].into() };
        assert_eq!(
            lines(&Dialect::Draft11.granted(&quotas, &grant)),
            [r#"ratelimit-policy: "x";q=60;w=60"#, r#"ratelimit: "x";r=2;t=58"#]
        );
        let waits =
            [Some(Wait::After(Duration::from_secs(3))), None, Some(Wait::After(Duration::from_secs(5)))];
        let standings = waits.map(|wait| Standing { level: Some(0.5), wait }).into();
        let refused = Refused { quotas, refusal: Refusal { at: None, standings } };
        assert_eq!(
            lines(&Dialect::Draft11.refused(&refused)),
            [r#"ratelimit-policy: "x";q=90;w=60"#, r#"ratelimit: "x";r=0;t=5"#]
        );
    }

    /// Once the policy of such a budget said `q=0`, and the legacy limit 0: that nothing is ever allowed.
    #[test]
    fn a_budget_of_less_than_one_token_does_not_read_as_none() {
        let quotas =
            vec![Quota::new(Scope::from_static("x"), Key::of("k"), "0.5/minute".parse().unwrap(), "")];
        let grant = Grant { at: Some(Timestamp::MIN), left: [Some(0.25)].into() };
        assert_eq!(
            lines(&Dialect::Draft11.granted(&quotas, &grant)),
            [r#"ratelimit-policy: "x";q=1;w=120"#, r#"ratelimit: "x";r=0;t=30"#]
        );
        assert_eq!(
            lines(&Dialect::Legacy.granted(&quotas, &grant)),
            ["x-ratelimit-limit: 1", "x-ratelimit-remaining: 0", "x-ratelimit-reset: 30"]
        );
    }

    #[test]
    fn what_no_integer_of_the_field_holds_is_cut_off() {
        let budget = "1/second burst 9007199254740992".parse().unwrap();
        let quotas = vec![Quota::new(Scope::from_static("x"), Key::of("k"), budget, "")];
        let grant = Grant { at: Some(Timestamp::MIN), left: [Some(9e15)].into() };
        assert_eq!(
            lines(&Dialect::Draft11.granted(&quotas, &grant)),
            [
                r#"ratelimit-policy: "x";q=999999999999999;w=999999999999999"#,
                r#"ratelimit: "x";r=999999999999999;t=7199254740992"#
            ]
        );
        assert_eq!(sfv::Integer::try_from(Quota::MAX_TOLD).unwrap(), sfv::Integer::MAX);
    }
}
