//! gRPC health: serving while the store answers.

use admit::Causes;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::engine::Store;
use crate::health;

/// The services whose health is told; the empty name is the whole server.
const SERVICES: [&str; 2] = ["", "envoy.service.ratelimit.v3.RateLimitService"];

/// Answers as `/readyz` does.
#[derive(Clone, Debug)]
pub(super) struct StoreHealth(pub(super) Store);

#[async_trait]
impl Health for StoreHealth {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !SERVICES.contains(&request.get_ref().service.as_str()) {
            return Err(Status::not_found("no such service is here"));
        }
        let status = match health::probe(self.0.store()).await {
            Ok(()) => ServingStatus::Serving,
            Err(cause) => {
                tracing::error!(kind = %cause.kind(), error = %Causes(&cause), "not serving");
                ServingStatus::NotServing
            }
        };
        Ok(Response::new(HealthCheckResponse { status: status.into() }))
    }

    type WatchStream = BoxStream<HealthCheckResponse>;

    /// Health is asked, not watched: each watcher would hold a stream open and probe the store.
    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("ask Check"))
    }
}
