//! A rate limit service for Envoy that answers OK: the least that one on tonic does.

use anyhow::Result;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

pub(super) fn run() -> Result<()> {
    super::listen(|listener| {
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = Server::builder().add_service(RateLimitServiceServer::new(Yes));
        async move { Ok(server.serve_with_incoming(incoming).await?) }
    })
}

struct Yes;

#[tonic::async_trait]
impl RateLimitService for Yes {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let yes = RateLimitResponse { overall_code: Code::Ok.into(), ..RateLimitResponse::default() };
        Ok(Response::new(yes))
    }
}
