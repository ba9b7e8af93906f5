//! What the log says of a request.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use admit::Key;
use admit_tower::{BudgetLayer, CorrelationId, Limiter, Quota};
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use http_body_util::Empty;
use support::service::{Setup, answers, by_header, keyed};
use support::{INGEST, time};
use tower::{Layer, ServiceExt};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The ids under which something was logged in this thread.
#[derive(Clone, Default)]
struct Ids(Arc<Mutex<Vec<String>>>);

impl Subscriber for Ids {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Ids {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "correlation_id" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

/// Budgets and records made up an id each where the application had set none, and the client had one of them.
#[tokio::test]
async fn all_that_fails_of_a_request_has_one_id() {
    for fails_open in [false, true] {
        for setup in Setup::both() {
            // Where the claim is tried without the budgets, both are told; one step that fails is one failure.
            let logged = 1 + usize::from(fails_open);
            let limiter = Limiter::new(setup.store.clone()).time(time(&setup.clock));
            let budgets = BudgetLayer::new(limiter, move |_: &Parts| {
                let quota = Quota::new(INGEST, Key::of("caller"), "9/hour".parse().unwrap(), "hourly");
                vec![if fails_open { quota.fail_open() } else { quota }]
            });
            let layer = match setup.one_store {
                true => setup.layer(by_header()).budgets_in_store(budgets),
                false => setup.layer(by_header()).budgets(budgets),
            };
            setup.store.takes_fail.store(true, Ordering::SeqCst);
            setup.store.claims_fail.store(true, Ordering::SeqCst);
            let ids = Ids::default();
            let _logging = tracing::subscriber::set_default(ids.clone());
            for known in [None, CorrelationId::new("of-the-application")] {
                let mut request = keyed("a").body(Empty::<Bytes>::new()).unwrap();
                if let Some(known) = known.clone() {
                    request.extensions_mut().insert(known);
                }
                let failed = layer.clone().layer(answers()).oneshot(request).await.unwrap();
                assert_eq!(failed.status(), StatusCode::SERVICE_UNAVAILABLE);
                let told = failed.headers()["x-correlation-id"].to_str().unwrap();
                assert!(known.is_none_or(|known| known.as_str() == told));
                assert_eq!(std::mem::take(&mut *ids.0.lock().unwrap()), vec![told; logged], "{fails_open}");
            }
        }
    }
}
