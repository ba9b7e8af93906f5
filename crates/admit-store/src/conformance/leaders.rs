//! What leases of leadership promise.

use std::time::Duration;

use admit::Now;
use tokio::task::JoinSet;

use super::{START, Store, seconds};
use crate::{Leader, Leadership};

const LEASE: Duration = Duration::from_secs(60);

async fn lead<S: Leader>(store: &S, holder: &str, after: f64) -> Option<Leadership> {
    store.lead("sweep", holder, LEASE, Now::At(seconds(after))).await.unwrap()
}

/// Until the lease lapses, nobody else leads, and the holder may come back.
pub async fn one_holder_leads_at_a_time<S: Store>(store: S) {
    let first = lead(&store, "a", 0.0).await.unwrap();
    assert_eq!(first.lease_until, seconds(60.0));
    assert_eq!(lead(&store, "b", 59.999_999).await, None);
    let again = lead(&store, "a", 30.0).await.unwrap();
    assert_eq!((again.fence, again.lease_until), (first.fence, seconds(90.0)));
    assert_eq!(lead(&store, "b", 89.999_999).await, None);
    let earlier = lead(&store, "a", 10.0).await.unwrap();
    assert_eq!(earlier.lease_until, seconds(90.0), "a lease never gets shorter");
    assert!(lead(&store, "b", 90.0).await.is_some());
    assert_eq!(lead(&store, "a", 90.0).await, None);
}

/// A lease that lapsed is a new leadership, even for the holder it had.
pub async fn a_change_of_hands_has_a_larger_fence<S: Store>(store: S) {
    let mut last = lead(&store, "a", 0.0).await.unwrap().fence;
    for (holder, after) in [("b", 60.0), ("a", 120.0), ("a", 180.0), ("b", 1_000.0)] {
        let fence = lead(&store, holder, after).await.unwrap().fence;
        assert!(fence > last, "{holder} at {after} s: {fence} is not above {last}");
        last = fence;
    }
}

/// Other names are other leaderships.
pub async fn leaderships_of_other_names_are_apart<S: Store>(store: S) {
    assert!(lead(&store, "a", 0.0).await.is_some());
    assert!(store.lead("other", "b", LEASE, Now::At(START)).await.unwrap().is_some());
    assert!(lead(&store, "b", 0.0).await.is_none());
}

/// Of many that ask at one instant, one leads.
pub async fn concurrent_holders_do_not_share<S: Store>(store: S) {
    let mut holders = JoinSet::new();
    for i in 0..20 {
        let store = store.clone();
        holders.spawn(async move { lead(&store, &format!("holder {i}"), 0.0).await });
    }
    assert_eq!(holders.join_all().await.into_iter().flatten().count(), 1);
}
