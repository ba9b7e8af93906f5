//! Why a layer answers instead of the service behind it, and how that reads.

use std::fmt;
use std::sync::Arc;

use admit::{Refusal, Wait};
use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderValue, StatusCode};

use crate::correlation::X_CORRELATION_ID;
use crate::{CorrelationId, Problem, Quota, problem_type};

/// Seconds after which a client whose key is in flight may come again. One will do: the retry waits, as the first did.
const IN_FLIGHT_RETRY_AFTER_SECONDS: u64 = 1;

/// Quotas of a request that did not all fit, so that none was charged.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// What the request was to be charged.
    pub quotas: Vec<Quota>,
    /// How each of them stood, in the same order.
    pub refusal: Refusal,
}

impl Refused {
    /// The quotas that did not fit, and how long each has to wait.
    pub fn violated(&self) -> impl Iterator<Item = (&Quota, Wait)> {
        self.refusal.refused().filter_map(|(i, wait)| Some((self.quotas.get(i)?, wait)))
    }

    /// The quota that has to wait longest: the one that the client is told of.
    pub fn longest(&self) -> Option<(&Quota, Wait)> {
        let (i, wait) = self.refusal.longest();
        Some((self.quotas.get(i)?, wait))
    }

    /// Whole seconds to wait, rounded up and at least 1; nothing if the charges never fit.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.refusal.retry_after_seconds()
    }
}

/// Why a layer answers instead of the service.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Rejection {
    /// A budget does not cover the request: 429.
    Refused(Refused),
    /// The store could not answer: 503. It says nothing of any limit; the cause is in the log.
    Unavailable,
    /// The charges were wrong, or the handler of a keyed request panicked: 500. The cause is in the log.
    Internal,
    /// The body of the service's answer to a keyed request broke off: 500, and 502 behind a gateway. The cause is in the log.
    AnswerBroken,
    /// As many keyed requests as may run are running, or there is no room for the body: 503.
    Overloaded,
    /// The idempotency key is missing where one is required: 400.
    KeyMissing {
        /// Where it was looked for.
        place: String,
    },
    /// The idempotency key, or the body it was to be taken from, cannot be read: 400.
    KeyMalformed {
        /// What is wrong.
        reason: String,
    },
    /// The body is longer than the layer reads: 413.
    BodyTooLarge {
        /// The bound in bytes.
        max: usize,
    },
    /// The body did not arrive within the time the layer waits for it: 408.
    BodyTooSlow,
    /// The body broke off: 400.
    BodyUnreadable,
    /// The key belongs to another payload: 422.
    Mismatch,
    /// Another request with this key is running: 409, to be tried again.
    InFlight,
    /// A run with this key died, and the route does not allow a second: 409, not to be tried again.
    Blocked,
    /// The request ran before and its response is not kept: 409, not to be tried again.
    Gone {
        /// The status of the first response.
        status: u16,
    },
}

impl Rejection {
    /// The problem document of this rejection, which a [`Render`] may extend or replace.
    ///
    /// A cost that never fits stays a 429, so that a client has one status for all refusals; it has no `Retry-After`,
    /// and its detail says that no wait helps.
    pub fn problem(&self) -> Problem {
        match self {
            Self::Refused(refused) => refused_problem(refused),
            Self::Unavailable => reduced_capacity(
                "The request could not be checked. It did not run. This says nothing about any limit.",
                "unavailable",
            ),
            Self::Overloaded => {
                reduced_capacity("Too many requests are running. This one did not run.", "overloaded")
            }
            Self::Internal | Self::AnswerBroken => Problem::new(StatusCode::INTERNAL_SERVER_ERROR)
                .detail("The request failed. The cause is in the server's log.")
                .with("error", "internal"),
            Self::KeyMissing { place } => Problem::new(StatusCode::BAD_REQUEST)
                .kind(problem_type::IDEMPOTENCY_KEY_MISSING, "Idempotency key missing")
                .detail(format!("this request needs an idempotency key in {place}"))
                .with("error", "idempotency_key_missing"),
            Self::KeyMalformed { reason } => Problem::new(StatusCode::BAD_REQUEST)
                .kind(problem_type::IDEMPOTENCY_KEY_MALFORMED, "Idempotency key malformed")
                .detail(reason.clone())
                .with("error", "idempotency_key_malformed"),
            Self::BodyTooLarge { max } => Problem::new(StatusCode::PAYLOAD_TOO_LARGE)
                .detail(format!("the body is longer than {max} bytes"))
                .with("error", "body_too_large"),
            Self::BodyTooSlow => Problem::new(StatusCode::REQUEST_TIMEOUT)
                .detail("the body did not arrive in time")
                .with("error", "body_too_slow"),
            Self::BodyUnreadable => Problem::new(StatusCode::BAD_REQUEST)
                .detail("the body broke off")
                .with("error", "body_unreadable"),
            Self::Mismatch => Problem::new(StatusCode::UNPROCESSABLE_ENTITY)
                .kind(problem_type::IDEMPOTENCY_KEY_REUSED, "Idempotency key reused")
                .detail("this idempotency key was used before, with another payload")
                .with("error", "idempotency_key_reused"),
            Self::InFlight => Problem::new(StatusCode::CONFLICT)
                .kind(problem_type::IDEMPOTENCY_IN_FLIGHT, "Request in flight")
                .detail("a request with this idempotency key is running")
                .with("error", "idempotency_in_flight")
                .with("retry_after_seconds", IN_FLIGHT_RETRY_AFTER_SECONDS)
                .header(RETRY_AFTER, IN_FLIGHT_RETRY_AFTER_SECONDS.into()),
            Self::Blocked => Problem::new(StatusCode::CONFLICT)
                .kind(problem_type::IDEMPOTENCY_BLOCKED, "Idempotency key blocked")
                .detail(
                    "a request with this idempotency key was started and never finished; whether it took effect is \
                     not known, and it is not run again",
                )
                .with("error", "idempotency_blocked"),
            Self::Gone { status } => Problem::new(StatusCode::CONFLICT)
                .kind(problem_type::IDEMPOTENCY_RESPONSE_NOT_KEPT, "Response not kept")
                .detail(format!(
                    "this request ran before, with status {status}; its response is not kept, and it is not run again"
                ))
                .with("error", "idempotency_response_not_kept")
                .with("original_status", *status),
        }
    }

    /// Whether the log has more to say than the client is told, so that the answer carries a correlation id.
    pub(crate) fn has_cause(&self) -> bool {
        matches!(self, Self::Unavailable | Self::Internal)
    }
}

fn reduced_capacity(detail: &'static str, error: &'static str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE)
        .kind(problem_type::TEMPORARY_REDUCED_CAPACITY, "Temporary reduced capacity")
        .detail(detail)
        .with("error", error)
}

fn refused_problem(refused: &Refused) -> Problem {
    let mut violated: Vec<&str> = Vec::new();
    for (quota, _) in refused.violated() {
        if !violated.contains(&quota.name()) {
            violated.push(quota.name()); // Several quotas of one scope are one policy.
        }
    }
    let (reason, window) = refused
        .longest()
        .map_or((Default::default(), 0), |(quota, _)| (quota.reason.clone(), quota.window_seconds()));
    let problem =
        Problem::new(StatusCode::TOO_MANY_REQUESTS).kind(problem_type::QUOTA_EXCEEDED, "Quota exceeded");
    let problem = match refused.retry_after_seconds() {
        Some(_) => problem.detail(reason.clone()),
        None => problem
            .detail(format!("{reason}; this request costs more than that ever allows, so it never fits")),
    };
    let mut problem = problem
        .with("violated-policies", violated)
        .with("error", "rate_limit_exceeded")
        .with("reason", reason.into_owned());
    if let Some(seconds) = refused.retry_after_seconds() {
        problem =
            problem.with("retry_after_seconds", seconds).header(RETRY_AFTER, HeaderValue::from(seconds));
    }
    problem.with("limit_window", format!("{window}s"))
}

/// Turns rejections into problem documents, for an application with codes and members of its own.
///
/// Closures are renders:
///
/// ```
/// use admit_tower::{Problem, Rejection};
/// use http::request::Parts;
///
/// let render = |request: &Parts, rejection: &Rejection| {
///     let code = match rejection {
///         Rejection::Refused(refused) if refused.violated().any(|(quota, _)| quota.name() == "per_node") => "per_node_rate_limited",
///         Rejection::Refused(_) => "per_domain_rate_limited",
///         _ => "internal",
///     };
///     rejection.problem().with("instance", request.uri.path()).with("code", code)
/// };
/// # fn is_render(_: impl admit_tower::Render) {}
/// # is_render(render);
/// ```
pub trait Render: Send + Sync + 'static {
    /// The problem to answer with; [`Rejection::problem`] is the one to start from.
    fn render(&self, request: &Parts, rejection: &Rejection) -> Problem;
}

impl<F: Fn(&Parts, &Rejection) -> Problem + Send + Sync + 'static> Render for F {
    fn render(&self, request: &Parts, rejection: &Rejection) -> Problem {
        self(request, rejection)
    }
}

/// A render of the application's, or none.
#[derive(Clone, Default)]
pub(crate) struct Renders(Option<Arc<dyn Render>>);

impl Renders {
    pub(crate) fn new(render: impl Render) -> Self {
        Self(Some(Arc::new(render)))
    }

    /// The problem; where the log has the cause, with the `id` that it stands under there.
    pub(crate) fn problem(
        &self,
        request: &Parts,
        rejection: &Rejection,
        id: Option<&CorrelationId>,
    ) -> Problem {
        let mut problem = match &self.0 {
            Some(render) => render.render(request, rejection),
            None => rejection.problem(),
        };
        if let Some(id) = id.filter(|_| rejection.has_cause()) {
            problem = problem.with("correlation_id", id.as_str());
            if let Some(value) = id.header_value() {
                problem = problem.header(X_CORRELATION_ID, value);
            }
        }
        problem
    }
}

impl fmt::Debug for Renders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Render" } else { "None" })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use admit::{Key, Scope, Standing};

    use super::*;

    fn refused(waits: [Option<Wait>; 2]) -> Refused {
        let quota = |scope, budget: &str, reason: &'static str| {
            Quota::new(Scope::from_static(scope), Key::of("k"), budget.parse().unwrap(), reason)
        };
        Refused {
            quotas: vec![
                quota("ingest", "100/hour", "100 requests/hour for POST /memory/ingest"),
                quota("burst", "10/second", "10 requests/second"),
            ],
            refusal: Refusal {
                at: None,
                standings: waits.map(|wait| Standing { level: Some(0.0), wait }).into(),
            },
        }
    }

    #[test]
    fn a_refusal_reads_as_the_contract_has_it() {
        let wait = Wait::After(Duration::from_micros(46_000_001));
        let problem = Rejection::Refused(refused([Some(wait), None])).problem();
        assert_eq!(problem.headers()["retry-after"], "47");
        assert_eq!(
            problem.to_json(),
            concat!(
                r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
                r#""title":"Quota exceeded","status":429,"#,
                r#""detail":"100 requests/hour for POST /memory/ingest","violated-policies":["ingest"],"#,
                r#""error":"rate_limit_exceeded","reason":"100 requests/hour for POST /memory/ingest","#,
                r#""retry_after_seconds":47,"limit_window":"3600s"}"#
            )
        );
    }

    /// Once all of these had type `about:blank`, so that a client had to read the `error` member to tell three 409s apart.
    #[test]
    fn what_a_client_can_branch_on_has_a_type_of_its_own_and_a_section_in_the_guide() {
        let (place, reason) = (String::new(), String::new());
        let told = [
            Rejection::Refused(refused([None, Some(Wait::After(Duration::from_secs(1)))])),
            Rejection::Unavailable,
            Rejection::KeyMissing { place },
            Rejection::KeyMalformed { reason },
            Rejection::Mismatch,
            Rejection::InFlight,
            Rejection::Blocked,
            Rejection::Gone { status: 200 },
        ];
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/problems.md");
        let guide = std::fs::read_to_string(guide).unwrap();
        let mut kinds = std::collections::HashSet::new();
        for rejection in told {
            let problem: serde_json::Value = serde_json::from_slice(&rejection.problem().to_json()).unwrap();
            let kind = problem["type"].as_str().unwrap();
            let (base, section) = kind.split_once('#').unwrap();
            assert!(
                base.starts_with("https://iana.org/") || base.ends_with("/docs/guide/problems.md"),
                "{kind}"
            );
            assert!(guide.contains(&format!("\n## {section}\n")), "{section}");
            let (status, error) = (&problem["status"], problem["error"].as_str().unwrap());
            assert!(
                guide.contains(&format!("| [{section}](#{section}) | {status} | `{error}`")),
                "{section}"
            );
            assert!(kinds.insert(kind.to_owned()), "{kind} stands for two problems");
        }
    }

    #[test]
    fn what_never_fits_is_told_no_wait() {
        let wait = Wait::After(Duration::from_secs(1));
        let problem = Rejection::Refused(refused([Some(wait), Some(Wait::Never)])).problem();
        assert!(problem.headers().is_empty());
        let json = String::from_utf8(problem.to_json().to_vec()).unwrap();
        assert!(json.contains("never fits") && !json.contains("retry_after_seconds"), "{json}");
        assert!(json.contains(r#""violated-policies":["ingest","burst"]"#), "{json}");
    }

    #[test]
    fn a_policy_that_two_quotas_violate_is_named_once() {
        let mut refused = refused([Some(Wait::Never), Some(Wait::Never)]);
        refused.quotas[1].charge.scope = refused.quotas[0].charge.scope.clone();
        let json = String::from_utf8(Rejection::Refused(refused).problem().to_json().to_vec()).unwrap();
        assert!(json.contains(r#""violated-policies":["ingest"]"#), "{json}");
    }
}
