//! Searches, and the pages they come in.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A page of something, and where the next one starts if there is more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice<T> {
    /// In the order of the list.
    pub rows: Vec<T>,
    /// What the next page starts behind; nothing on the last page.
    pub next: Option<Position>,
}

/// Names an item: its job, and its place in the batch. Clients know both, whereas numbers of rows would tell them how much
/// others store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemName {
    /// The job that brought it.
    pub job_id: Uuid,
    /// Its place in the batch, from 0.
    pub position: i64,
}

/// Where a page ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Position {
    /// In a search: behind item `after`, among the items that the tenant had at the first page.
    ///
    /// Items found since then have no place on later pages, so none of them moves an item from one page to another.
    Search {
        /// The tenant's last item when the first page was read.
        last: ItemName,
        /// The last item of the page.
        after: ItemName,
    },
    /// In the list of skills: behind the one whose text has this SHA-256.
    Skill([u8; 32]),
    /// In the list of projects: behind the one of this name.
    Project(String),
}

/// What to look for.
#[derive(Clone, Debug)]
pub struct Search {
    /// Whose items.
    pub tenant: String,
    /// Words that all have to be there; if there are none, every item is found, the newest first.
    pub words: Vec<String>,
    /// Only of this project.
    pub project: Option<String>,
    /// Only of this kind.
    pub kind: Option<String>,
    /// How many items make a page.
    pub limit: u32,
    /// Where the last page ended.
    pub from: Option<Position>,
}

impl Search {
    /// The tenant's last item at the first page, and the last item of the page before; nothing yet at the first page.
    pub(crate) fn start(&self) -> Option<(ItemName, ItemName)> {
        match self.from {
            Some(Position::Search { last, after }) => Some((last, after)),
            _ => None,
        }
    }
}

impl<T> Slice<T> {
    /// The page of `limit` rows out of the up to `limit + 1` that were read, each with its position.
    pub(crate) fn of(mut rows: Vec<(T, Position)>, limit: u32) -> Self {
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next = if more { rows.last().map(|(_, position)| position.clone()) } else { None };
        Self { rows: rows.into_iter().map(|(row, _)| row).collect(), next }
    }
}
