//! `GET /memory/query`.

use admit_tower::Rejection;
use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::shape::{Asked, Malformed};
use super::{App, respond, time, unavailable};
use crate::storage::{Item, Slice};

#[derive(Serialize)]
struct Found {
    items: Vec<ItemBody>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct ItemBody {
    id: String,
    project: String,
    kind: String,
    text: String,
    tags: Vec<String>,
    created_at: String,
}

pub(super) async fn query(
    State(app): State<App>,
    malformed: Option<Extension<Malformed>>,
    asked: Option<Extension<Asked>>,
) -> Response {
    if let Some(Extension(Malformed(problem))) = malformed {
        return respond(*problem);
    }
    let Some(Extension(Asked::Search(query))) = asked else { return respond(Rejection::Internal.problem()) };
    let found = match query.finds_nothing {
        true => Ok(Slice { rows: Vec::new(), next: None }),
        false => app.storage.search(query.search).await,
    };
    match found {
        Ok(slice) => {
            let next_cursor = slice.next.map(|position| query.binding.encode(&position));
            let items = slice.rows.into_iter().map(ItemBody::from).collect();
            Json(Found { items, next_cursor }).into_response()
        }
        Err(cause) => unavailable(&cause),
    }
}

impl From<Item> for ItemBody {
    /// An item is named by its job and its place in it: numbers of the store would tell how much others store.
    fn from(item: Item) -> Self {
        Self {
            id: format!("{}.{}", item.name.job_id, item.name.position),
            project: item.project,
            kind: item.kind,
            text: item.text,
            tags: item.tags,
            created_at: time(item.created_at),
        }
    }
}
