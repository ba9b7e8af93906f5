//! Envoy's protocols: `ShouldRateLimit` over gRPC, the same as JSON at `/json`, `ext_authz` over gRPC, and gRPC health.
//!
//! A request has descriptors, and the policy says which of them are held to which budgets. All descriptors of a request
//! are decided on at once, all or nothing, by the same [`Decider`] as in every front.

mod asked;
mod authorization;
mod call;
mod decide;
mod grpc;
mod health;
mod json;
mod schemas;
mod status;

use std::future::ready;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::map_request;
use axum::routing::{any_service, post};
use envoy_types::pb::envoy::service::auth::v3::authorization_server::AuthorizationServer;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use http::request::Parts;
use tonic_health::pb::health_server::HealthServer;

use crate::engine::Decider;
use crate::{bearer, body};

pub(crate) use schemas::schemas;

/// The longest message, in bytes: 64 descriptors of some entries each.
const MAX_MESSAGE_BYTES: usize = 256 << 10;
/// The longest body of a call: one such message, and the five bytes before it.
const MAX_CALL_BYTES: usize = MAX_MESSAGE_BYTES + 5;

/// Decides on the requests of Envoy's protocol. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct RateLimits {
    decider: Arc<Decider>,
}

impl RateLimits {
    pub(crate) fn new(decider: Arc<Decider>) -> Self {
        Self { decider }
    }
}

/// The gRPC services, by their paths: these are fixed, so that no prefix stands before them.
/// `authorize` decides on requests as they are.
pub(crate) fn grpc(decider: Arc<Decider>, authorize: Router) -> Router {
    let (policy, limits) = (decider.policy.clone(), RateLimits { decider: decider.clone() });
    let ahead = decider.read_ahead.clone();
    let limits = RateLimitServiceServer::new(limits).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let checks = AuthorizationServer::new(authorization::Checks(authorize));
    let checks = checks.max_decoding_message_size(MAX_MESSAGE_BYTES);
    let health = HealthServer::new(health::StoreHealth(decider.store.clone()));
    let calls = Router::new()
        .route("/envoy.service.ratelimit.v3.RateLimitService/{method}", any_service(limits))
        .route("/envoy.service.auth.v3.Authorization/{method}", any_service(checks));
    bearer::guard_calls(calls, &policy)
        // A probe has no token, and learns no more than from `/readyz`.
        .route("/grpc.health.v1.Health/{method}", any_service(health))
        .layer(map_request(move |request: Request| {
            ready(request.map(|body| body::bounded(&ahead, body, MAX_CALL_BYTES)))
        }))
}

/// `POST /json`.
pub(crate) fn json(decider: Arc<Decider>) -> Router {
    let policy = decider.policy.clone();
    bearer::guard(Router::new().route("/json", post(json::answer)), &policy)
        .with_state(RateLimits { decider })
}

/// A head for what has none of its own.
fn no_head() -> Parts {
    http::Request::new(()).into_parts().0
}
