//! Which requests run once, and by which key.

use std::time::Duration;

use admit::idempotency::Terms;
use http::request::Parts;

use crate::JsonPointer;

/// How a request is kept from running twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotent {
    /// Whose key it is: one tenant's key never meets another's. Take it from the authenticated caller.
    pub tenant: String,
    /// What the key is good for. Default: the path that the layer sees. Within a nested router that is the inner path;
    /// set the route there if the store serves other routers too.
    pub route: Option<String>,
    /// Where the key is.
    pub key: KeyFrom,
    /// What happens if it is not there.
    pub if_missing: IfMissing,
    /// What tells one payload from another.
    pub fingerprint: FingerprintOf,
    /// For how long.
    pub terms: Terms,
    /// How long it waits for another with its key; see [`wait`](Self::wait).
    pub wait: Duration,
}

/// Where a request has its idempotency key: 1 to 255 characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFrom {
    /// In the header `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header-07): a quoted string, or the same
    /// without quotes.
    Header,
    /// In a string of the JSON body.
    Body {
        /// Points at the string. Absent and null both count as missing.
        pointer: JsonPointer,
    },
}

/// What happens to a request without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    /// It is answered with 400.
    Reject,
    /// It runs like a request that is not idempotent.
    RunUnkeyed,
    /// Its content is its key: `jcs1-sha256:` and the SHA-256, in hexadecimal, of the canonical form (RFC 8785) of its
    /// JSON body without the key's member. The response tells it in `Idempotency-Key`.
    ContentKey,
}

/// What tells the payload of one request from that of another with the same key. The query is always part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FingerprintOf {
    /// The body, byte for byte.
    RawBody,
    /// The canonical form (RFC 8785) of the JSON body without the key's member, so that white space and the order of
    /// members do not count. What is told by a content key is always compared so.
    CanonicalJson,
}

impl Idempotent {
    /// How long a request waits for another with its key, unless it is told otherwise.
    pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);

    /// The key is in the header, and required; the body counts byte for byte.
    pub fn by_header(tenant: impl Into<String>) -> Self {
        Self {
            tenant: tenant.into(),
            route: None,
            key: KeyFrom::Header,
            if_missing: IfMissing::Reject,
            fingerprint: FingerprintOf::RawBody,
            terms: Terms::default(),
            wait: Self::DEFAULT_WAIT,
        }
    }

    /// The key is in the JSON body, and required; the body counts in its canonical form.
    pub fn by_body(tenant: impl Into<String>, pointer: JsonPointer) -> Self {
        Self {
            key: KeyFrom::Body { pointer },
            fingerprint: FingerprintOf::CanonicalJson,
            ..Self::by_header(tenant)
        }
    }

    /// Sets what happens if the key is not there.
    #[must_use]
    pub fn if_missing(mut self, what: IfMissing) -> Self {
        self.if_missing = what;
        self
    }

    /// Sets what tells one payload from another.
    #[must_use]
    pub fn fingerprint(mut self, of: FingerprintOf) -> Self {
        self.fingerprint = of;
        self
    }

    /// Sets the lease, the time to live, and what becomes of a run that died.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Sets how long it waits for another with its key before it is answered with 409. A run in this process wakes it at
    /// once; for those of others it asks the store after 25 ms, and then in intervals that double up to a second. No more
    /// than 1,024 wait at once in a layer, or in those that share their [runs](crate::Runs); others are answered right away. Default 10 s.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets what the key is good for.
    #[must_use]
    pub fn route(mut self, route: impl Into<String>) -> Self {
        self.route = Some(route.into());
        self
    }
}

/// Says whether a request is idempotent, and how. Closures from the request's head are policies.
///
/// It runs after authentication, so that it can find the tenant in the request's extensions. gRPC calls are not asked
/// about where the layer is [before gRPC](crate::IdempotencyLayer::before_grpc): their outcome is in trailers, which are
/// not replayed.
pub trait IdempotencyPolicy: Send + Sync + 'static {
    /// How the request is kept from running twice; nothing if it may.
    fn idempotent(&self, request: &Parts) -> Option<Idempotent>;
}

impl<F: Fn(&Parts) -> Option<Idempotent> + Send + Sync + 'static> IdempotencyPolicy for F {
    fn idempotent(&self, request: &Parts) -> Option<Idempotent> {
        self(request)
    }
}
