//! What is logged, and in which form; and, where the program was built with it, what is traced.

mod flood;
#[cfg(feature = "otlp")]
mod otlp;

use std::io::IsTerminal;

use admit::MonotonicClock;
use admit_listen::Answering;
use axum::extract::Request;
use tracing::field::Empty;
use tracing::{Instrument, Level, Metadata};
use tracing_subscriber::filter::{FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use flood::Flood;
pub(crate) use flood::left_out;

/// The target of spans that are for traces alone. Where no traces are sent they cost nothing, and no log shows them.
pub const TARGET: &str = "admit::trace";

/// What was started. Dropped, it sends what is left; not on a thread of an asynchronous runtime.
#[derive(Debug)]
#[must_use = "traces end when it is dropped"]
pub struct Tracing {
    #[cfg(feature = "otlp")]
    _traces: Option<otlp::Traces>,
}

/// Logs to standard error: for people on a terminal, else as JSON, one object a line. With the feature `otlp`, sends
/// traces to where the variables of OpenTelemetry say, as in `OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317`; without
/// one of them none. Must be called on a Tokio runtime then.
pub fn start() -> Tracing {
    let logged = filter_fn(is_logged).and(LevelFilter::INFO).and(Flood::new(MonotonicClock::start()));
    let log = match std::io::stderr().is_terminal() {
        true => fmt::layer().with_target(false).with_writer(std::io::stderr).with_filter(logged).boxed(),
        false => fmt::layer().json().with_writer(std::io::stderr).with_filter(logged).boxed(),
    };
    let registry = tracing_subscriber::registry().with(log);
    #[cfg(feature = "otlp")]
    {
        let (traces, layer, failure) = match otlp::traces() {
            Ok(Some((traces, layer))) => (Some(traces), Some(layer), None),
            Ok(None) => (None, None, None),
            Err(error) => (None, None, Some(error)),
        };
        registry.with(layer).init();
        if let Some(error) = failure {
            tracing::error!(error = %admit::Causes(&error), "no traces are sent");
        }
        Tracing { _traces: traces }
    }
    #[cfg(not(feature = "otlp"))]
    {
        registry.init();
        Tracing {}
    }
}

/// The libraries of HTTP warn of what a client does wrong, once for each connection: clients would fill the disk.
fn is_logged(metadata: &Metadata<'_>) -> bool {
    let is_of_clients = |name| metadata.target().split("::").next() == Some(name);
    metadata.target() != TARGET
        && (*metadata.level() == Level::ERROR || !["h2", "hyper", "rustls"].into_iter().any(is_of_clients))
}

/// A span for each request, within the trace that the client began, if it did (`traceparent`). What the request is
/// forwarded with names this span.
pub(crate) fn request(request: Request, answer: impl FnOnce(Request) -> Answering) -> Answering {
    let span = tracing::info_span!(
        target: TARGET,
        "request",
        otel.kind = "server",
        http.request.method = %request.method(),
        url.path = request.uri().path(),
        http.response.status_code = Empty,
    );
    if span.is_disabled() {
        return answer(request);
    }
    #[cfg(feature = "otlp")]
    let request = otlp::join(&span, request);
    let answering = span.in_scope(|| answer(request));
    Box::pin(async move {
        let response = answering.instrument(span.clone()).await;
        span.record("http.response.status_code", response.status().as_u16());
        response
    })
}
