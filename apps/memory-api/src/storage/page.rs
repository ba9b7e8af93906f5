//! Searches, and the pages they come in.

use serde::{Deserialize, Serialize};

/// A page of something, and where the next one starts if there is more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice<T> {
    /// In the order of the list.
    pub rows: Vec<T>,
    /// What the next page starts behind; nothing on the last page.
    pub next: Option<Position>,
}

/// Where a page ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Position {
    /// In a search: behind item `after`, among the items that there were at the first page.
    ///
    /// Items found since then have no place on later pages, so none of them moves an item from one page to another.
    Search {
        /// The last item when the first page was read.
        snapshot: i64,
        /// The last item of the page.
        after: i64,
    },
    /// In a list by number, the highest first: below this one.
    Below(i64),
    /// In a list by name: behind this one.
    Name(String),
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
    /// The snapshot of the search, and the last item of the page before.
    pub(crate) fn start(&self) -> (Option<i64>, Option<i64>) {
        match self.from {
            Some(Position::Search { snapshot, after }) => (Some(snapshot), Some(after)),
            _ => (None, None),
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
