//! The types of problem documents that a client can branch on.
//!
//! Two are registered with IANA by draft-ietf-httpapi-ratelimit-headers-11. For the others, those of the idempotency layer,
//! draft-ietf-httpapi-idempotency-key-header-07 asks for a link to what explains the problem; they are the addresses of the
//! sections of a guide page that say what happened and what to do. They do not change. What has no type here is
//! `about:blank`, as its status says it all.

/// One section of the guide page.
macro_rules! section {
    ($name:literal) => {
        concat!("https://github.com/admit-rs/admit/blob/main/docs/guide/problems.md#", $name)
    };
}

/// 429: a budget does not cover the request.
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// 503: the request could not be checked, or too many run.
pub const TEMPORARY_REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
/// 400: the idempotency key is missing where one is required.
pub const IDEMPOTENCY_KEY_MISSING: &str = section!("idempotency-key-missing");
/// 400: the idempotency key, or the body it was to be taken from, cannot be read.
pub const IDEMPOTENCY_KEY_MALFORMED: &str = section!("idempotency-key-malformed");
/// 422: the key belongs to another payload.
pub const IDEMPOTENCY_KEY_REUSED: &str = section!("idempotency-key-reused");
/// 409, to be tried again: another request with this key is running.
pub const IDEMPOTENCY_IN_FLIGHT: &str = section!("idempotency-in-flight");
/// 409, not to be tried again: a run with this key died, and the route does not allow a second.
pub const IDEMPOTENCY_BLOCKED: &str = section!("idempotency-blocked");
/// 409, not to be tried again: the request ran before, and its response is not kept.
pub const IDEMPOTENCY_RESPONSE_NOT_KEPT: &str = section!("idempotency-response-not-kept");
/// 409, not to be tried again: the ticket of a run no longer holds its key.
pub const IDEMPOTENCY_TICKET_LOST: &str = section!("idempotency-ticket-lost");
