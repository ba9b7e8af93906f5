//! Bodies, read up to a bound.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It is larger than the bound. No more than the bound was read.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// The bound, in bytes.
        limit: usize,
    },
    /// It broke off.
    #[error("the body broke off")]
    Broken(#[source] axum::Error),
}

/// The bytes of a body as they came, or an error as soon as they are known to be more than `limit`.
///
/// # Errors
/// [`BodyError`].
pub async fn read(headers: &HeaderMap, mut body: Body, limit: usize) -> Result<Bytes, BodyError> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(BodyError::TooLarge { limit });
    }
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(BodyError::Broken)?.into_data() else { continue }; // Trailers.
        if read.len() + data.len() > limit {
            return Err(BodyError::TooLarge { limit });
        }
        read.extend_from_slice(&data);
    }
    Ok(read.freeze())
}
