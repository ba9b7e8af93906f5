//! Answers Envoy as limitador's own server does, with its library and its memory store, until its input ends. Writes first
//! where it listens, as a part of the benches does. Its arguments are the domain, and three for each entry that is limited:
//! its key, how many requests are allowed, and in how many seconds.

use std::collections::HashMap;
use std::error::Error;
use std::io::Write;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use limitador::RateLimiter;
use limitador::limit::{Context, Limit};
use mimalloc::MiMalloc;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// As `admit` has.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How many counters it keeps.
const COUNTERS: u64 = 100_000;

struct Service(RateLimiter);

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let descriptors = request.descriptors.into_iter().map(|descriptor| {
            let entries = descriptor.entries.into_iter().map(|entry| (entry.key, entry.value));
            entries.collect::<HashMap<String, String>>()
        });
        let mut context = Context::default();
        context.list_binding("descriptors".to_owned(), descriptors.collect());
        let hits = u64::from(request.hits_addend.max(1));
        let checked = self.0.check_rate_limited_and_update(&request.domain.into(), &context, hits);
        let limited = checked.map_err(|error| Status::unavailable(error.to_string()))?.limited;
        let code = if limited { Code::OverLimit } else { Code::Ok };
        Ok(Response::new(RateLimitResponse { overall_code: code.into(), ..RateLimitResponse::default() }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (domain, limits) = args.split_first().ok_or("no domain")?;
    let limiter = RateLimiter::new(COUNTERS);
    for limit in limits.chunks_exact(3) {
        let key = &limit[0];
        let condition = format!("'{key}' in descriptors[0]").try_into()?;
        let variable = format!("descriptors[0]['{key}']").try_into()?;
        limiter.add_limit(Limit::new(
            domain.as_str(),
            limit[1].parse()?,
            limit[2].parse()?,
            vec![condition],
            vec![variable],
        ));
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = Server::builder().add_service(RateLimitServiceServer::new(Service(limiter)));
    let server = tokio::spawn(server.serve_with_incoming(incoming));
    let mut out = std::io::stdout();
    writeln!(out, "{{\"port\":{port}}}")?;
    out.flush()?;
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()))
        .await??;
    server.abort();
    Ok(())
}
