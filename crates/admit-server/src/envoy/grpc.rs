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
            Err(undecided) => {
                let told = undecided.to_string();
                Err(match undecided {
                    Undecided::Invalid(_) => Status::invalid_argument(told),
                    Undecided::Unavailable => Status::unavailable(told),
                    Undecided::Internal => Status::internal(told),
                })
            }
        }
    }
}
