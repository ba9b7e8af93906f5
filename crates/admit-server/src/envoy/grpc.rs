//! `ShouldRateLimit` over gRPC.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status, async_trait};

use super::RateLimits;
use super::decide::Undecided;

#[async_trait]
impl RateLimitService for RateLimits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        match self.decide(request.get_ref()).await {
            Ok(response) => Ok(Response::new(response)),
            Err(undecided) => Err(undecided.into()),
        }
    }
}

impl From<Undecided> for Status {
    fn from(undecided: Undecided) -> Self {
        let told = undecided.to_string();
        match undecided {
            Undecided::Invalid(_) => Self::invalid_argument(told),
            Undecided::Unavailable => Self::unavailable(told),
            Undecided::Internal => Self::internal(told),
        }
    }
}
