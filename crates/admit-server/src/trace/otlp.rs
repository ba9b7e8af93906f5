//! Traces by OTLP, over gRPC.

use axum::extract::Request;
use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use super::TARGET;

/// Without one of these, traces would go to a collector on this machine that may not be there.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// Traces that are sent in the background, in batches whose bounds `OTEL_BSP_*` set.
#[derive(Debug)]
pub(super) struct Traces(SdkTracerProvider);

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(cause = %error, "the last traces were not sent");
        }
    }
}

type Started<S> = Option<(Traces, Box<dyn Layer<S> + Send + Sync>)>;

/// Nothing, if no variable says where to.
pub(super) fn traces<S>() -> Result<Started<S>, ExporterBuildError>
where
    S: Subscriber + for<'s> LookupSpan<'s> + Send + Sync,
{
    let told = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !ENDPOINTS.iter().any(told) {
        return Ok(None);
    }
    let exporter = SpanExporter::builder().with_tonic().build()?;
    let mut resource = Resource::builder();
    if !told(&"OTEL_SERVICE_NAME") {
        resource = resource.with_service_name("admit");
    }
    let provider =
        SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("admit"))
        .with_location(false)
        .with_threads(false)
        .with_filter(filter_fn(|metadata| metadata.target() == TARGET));
    Ok(Some((Traces(provider), layer.boxed())))
}

struct Headers<'h>(&'h HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct HeadersMut<'h>(&'h mut HeaderMap);

impl Injector for HeadersMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (key.parse::<HeaderName>(), HeaderValue::try_from(value)) {
            self.0.insert(name, value);
        }
    }
}

/// Makes the span a child of what the client names, and names it to whom the request is forwarded.
pub(super) fn join(span: &Span, mut request: Request) -> Request {
    let propagator = TraceContextPropagator::new();
    let parent = propagator.extract(&Headers(request.headers()));
    if parent.span().span_context().is_valid() {
        let _ = span.set_parent(parent); // It fails where no layer traces; then there is nothing to join.
    }
    propagator.inject_context(&span.context(), &mut HeadersMut(request.headers_mut()));
    request
}
