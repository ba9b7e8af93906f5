//! gRPC health: serving while the store answers.

use std::time::Duration;

use admit::{Budget, BudgetStore, Causes, Charge, Key, Now};
use tokio::time::timeout;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::engine::Decider;

/// How long the store may take to answer a probe.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// The services whose health is told; the empty name is the whole server.
const SERVICES: [&str; 2] = ["", "envoy.service.ratelimit.v3.RateLimitService"];

#[derive(Clone, Debug)]
pub(super) struct StoreHealth {
    decider: Decider,
    probe: Option<Charge>,
}

impl StoreHealth {
    pub(super) fn new(decider: Decider) -> Self {
        let policy = &decider.policy;
        let named = policy.budgets.first().map(|rule| (rule.scope.clone(), rule.budget));
        let brought = || {
            let budget: Budget = "1/second".parse().ok()?;
            Some((policy.server.decisions.scopes.first()?.clone(), budget))
        };
        // A look at a bucket that nobody has: it writes nothing.
        let probe = named.or_else(brought);
        let probe = probe.map(|(scope, budget)| Charge::one(scope, Key::hashed("grpc.health"), budget));
        Self { decider, probe }
    }

    async fn answers(&self) -> bool {
        let Some(probe) = &self.probe else { return true };
        match timeout(TIME_LIMIT, self.decider.store.peek(std::slice::from_ref(probe), Now::Store)).await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => {
                tracing::error!(error = %Causes(&error), "not serving");
                false
            }
            Err(elapsed) => {
                tracing::error!(error = %elapsed, "not serving");
                false
            }
        }
    }
}

#[async_trait]
impl Health for StoreHealth {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !SERVICES.contains(&request.get_ref().service.as_str()) {
            return Err(Status::not_found("no such service is here"));
        }
        let status = if self.answers().await { ServingStatus::Serving } else { ServingStatus::NotServing };
        Ok(Response::new(HealthCheckResponse { status: status.into() }))
    }

    type WatchStream = BoxStream<HealthCheckResponse>;

    /// Health is asked, not watched: each watcher would hold a stream open and probe the store.
    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("ask Check"))
    }
}
