//! Reads the bodies of requests, within bounds.

use std::time::Duration;

use admit_tower::Rejection;
use axum::body::Body;
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::{BodyExt, Collected, LengthLimitError, Limited};
use tokio::time::timeout;

/// How long a body may take to arrive.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The bytes of the whole body.
///
/// # Errors
/// As [`collected`].
pub(crate) async fn whole(body: Body, max: usize) -> Result<Bytes, Rejection> {
    collected(body, max).await.map(Collected::to_bytes)
}

/// The whole body.
///
/// # Errors
/// [`Rejection`] if it is longer than `max` bytes, too slow, or breaks off.
pub(crate) async fn collected(body: Body, max: usize) -> Result<Collected<Bytes>, Rejection> {
    let too_large = || Rejection::BodyTooLarge { max };
    if body.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    match timeout(TIME_LIMIT, Limited::new(body, max).collect()).await {
        Ok(Ok(whole)) => Ok(whole),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Rejection::BodyUnreadable),
        Err(_) => Err(Rejection::BodyTooSlow),
    }
}
