//! Clients that hang up after they have paid, and before their requests run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use admit::idempotency::{Claim, Fingerprint, Terms};
use admit::{IdempotencyStore, Now};
use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use support::service::{Setup, by_header, keyed, record};
use support::{BURST, INGEST};
use tokio::task::JoinHandle;
use tower::{Layer, ServiceExt, service_fn};

/// A request that somebody waits for who may hang up.
struct Asked(JoinHandle<()>);

impl Asked {
    fn by(setup: &Setup, body: BoxBody<Bytes, Infallible>) -> Self {
        let runs_for_ever =
            service_fn(|_| std::future::pending::<Result<Response<Empty<Bytes>>, Infallible>>());
        let service = setup.held(by_header(), "1000/hour").layer(runs_for_ever);
        let answering = service.oneshot(keyed("a").body(body).unwrap());
        Self(tokio::spawn(async move { drop(answering.await) }))
    }

    async fn hang_up(self) {
        self.0.abort();
        assert!(self.0.await.unwrap_err().is_cancelled(), "it was answered");
    }
}

fn no_body() -> BoxBody<Bytes, Infallible> {
    Empty::new().boxed()
}

/// Where the budgets are not taken in the statement of the claim: they are in another store, or leased.
fn apart() -> [Setup; 2] {
    let setups = Setup::both();
    setups[1].store.one_by_one.store(true, Ordering::SeqCst);
    setups
}

/// It claims the key of [`keyed`] requests for somebody else.
async fn claim(setup: &Setup) {
    let claim =
        setup.store.claim(&record("a"), &Fingerprint::of(""), &Terms::default(), Now::At(setup.now())).await;
    assert!(matches!(claim, Ok(Claim::Run(_))), "{claim:?}");
}

/// Only whoever waited for the claim gave back what had been paid before it, so that a client that hung up meanwhile had paid
/// for a run that never was.
#[tokio::test]
async fn a_claim_that_comes_to_nothing_gives_back_what_was_paid_though_the_client_has_gone() {
    for is_lost in [false, true] {
        for setup in apart() {
            setup.store.claiming.hang(true);
            let asked = Asked::by(&setup, no_body());
            setup.store.claiming.begun.notified().await;
            setup.spent(INGEST, 1.0).await;
            asked.hang_up().await;
            match is_lost {
                true => {
                    setup.store.claiming.hang(false);
                    claim(&setup).await;
                }
                false => setup.store.claims_fail.store(true, Ordering::SeqCst),
            }
            setup.store.claiming.go.add_permits(1);
            setup.given_back(INGEST).await;
            setup.given_back(BURST).await;
        }
    }
}

/// Such a request pays before its body is read, and what it had paid was lost with it.
#[tokio::test]
async fn a_client_that_leaves_before_it_has_sent_its_body_is_given_back_what_it_paid() {
    for setup in Setup::both() {
        let endless = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let asked = Asked::by(&setup, BoxBody::new(endless));
        setup.spent(INGEST, 1.0).await;
        asked.hang_up().await;
        setup.given_back(INGEST).await;
        setup.given_back(BURST).await;
    }
}

/// The refund was dropped with the request.
#[tokio::test]
async fn a_refund_that_is_under_way_is_finished_though_the_client_has_gone() {
    for setup in apart() {
        claim(&setup).await;
        setup.store.blind.store(true, Ordering::SeqCst); // It looked before that.
        setup.store.refunding.hang(true);
        let asked = Asked::by(&setup, no_body());
        setup.store.refunding.begun.notified().await;
        asked.hang_up().await;
        setup.store.refunding.go.add_permits(2);
        setup.given_back(INGEST).await;
    }
}

/// Else a client could ask for a key that is in flight as often as it likes.
#[tokio::test]
async fn who_leaves_while_another_runs_has_paid_for_asking() {
    for setup in Setup::both() {
        let _runs = Asked::by(&setup, no_body());
        setup.spent(BURST, 1.0).await;
        for others in [2.0, 3.0] {
            let asked = Asked::by(&setup, no_body());
            setup.spent(BURST, others).await;
            setup.store.refunding.hang(true);
            asked.hang_up().await;
        }
        assert_eq!(setup.store.refunding.in_flight.load(Ordering::SeqCst), 0);
    }
}
