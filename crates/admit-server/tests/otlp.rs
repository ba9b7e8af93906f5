//! Traces arrive at a collector.
#![cfg(feature = "otlp")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod program_place;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use program_place::Serving;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Hands on every span that it is sent.
struct Collector(mpsc::UnboundedSender<Span>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                self.0.send(span).unwrap();
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tokio::test]
async fn a_request_and_its_store_calls_are_spans_within_the_clients_trace() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (spans, mut sent) = mpsc::unbounded_channel();
    let serving = tonic::transport::Server::builder().add_service(TraceServiceServer::new(Collector(spans)));
    tokio::spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));

    let directory = tempfile::tempdir().unwrap();
    let program =
        Serving::start_with(&directory, &[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())]).await;
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0b5902b7-01";
    assert_eq!(program.get_with("/authorize", "traceparent", traceparent).await, 200);
    program.stop().await; // Which sends what is left.

    let mut found = Vec::new();
    while found.len() < 2 {
        let span = tokio::time::timeout(std::time::Duration::from_secs(30), sent.recv()).await;
        let span = span.expect("spans arrive").unwrap();
        if span.trace_id == 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes() {
            found.push(span);
        }
    }
    found.sort_by_key(|span| span.name.clone());
    let [request, store] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((request.name.as_str(), store.name.as_str()), ("request", "store"));
    assert_eq!(request.parent_span_id, 0x00f0_67aa_0b59_02b7_u64.to_be_bytes());
    assert_eq!(store.parent_span_id, request.span_id);
    let attributes: Vec<&str> = store.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
    assert!(attributes.contains(&"operation") && attributes.contains(&"store"), "{attributes:?}");
}
