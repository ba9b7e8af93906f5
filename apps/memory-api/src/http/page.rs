//! Pages of lists, as clients see them.

use admit::Unavailable;
use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::unavailable;
use crate::cursor::Binding;
use crate::storage::Slice;

/// A page: its rows, and the cursor of the next one.
pub(super) fn page<T, R: From<T>, B: Serialize>(
    slice: Result<Slice<T>, Unavailable>,
    binding: Binding,
    body: impl FnOnce(Vec<R>, Option<String>) -> B,
) -> Response {
    match slice {
        Ok(Slice { rows, next }) => {
            let next_cursor = next.map(|position| binding.encode(&position));
            Json(body(rows.into_iter().map(R::from).collect(), next_cursor)).into_response()
        }
        Err(cause) => unavailable(&cause),
    }
}
