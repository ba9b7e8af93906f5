//! `GET /memory/query`.

use axum::extract::{Extension, State};
use axum::response::Response;
use serde::Serialize;

use super::page::page;
use super::{App, time};
use crate::params::Query;
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

pub(super) async fn query(State(app): State<App>, Extension(query): Extension<Query>) -> Response {
    let found = match query.finds_nothing {
        true => Ok(Slice { rows: Vec::new(), next: None }),
        false => app.storage.search(query.search).await,
    };
    page(found, query.binding, |items: Vec<ItemBody>, next_cursor| Found { items, next_cursor })
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
