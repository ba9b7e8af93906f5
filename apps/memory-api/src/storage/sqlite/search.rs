//! What is found in SQLite.

use admit::Unavailable;
use rusqlite::{Row, named_params};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{SqliteStorage, timestamp};
use crate::batch::hex;
use crate::storage::{Item, Position, Project, Search, Skill, Slice};

const SEARCH: &str = include_str!("sql/search.sql");
const LATEST: &str = include_str!("sql/latest.sql");
const PROJECTS: &str = include_str!("sql/projects.sql");
const SKILLS: &str = include_str!("sql/skills.sql");
const LAST_ITEM: &str = "SELECT coalesce(max(id), 0) FROM items";

impl SqliteStorage {
    pub(crate) async fn search(&self, search: Search) -> Result<Slice<Item>, Unavailable> {
        let read = self.connections.read(move |transaction| {
            let (snapshot, after) = search.start();
            let snapshot = match snapshot {
                Some(snapshot) => snapshot,
                None => transaction.query_row(LAST_ITEM, [], |row| row.get(0))?,
            };
            let more = search.limit + 1;
            let rows: rusqlite::Result<Vec<_>> = if search.words.is_empty() {
                let mut statement = transaction.prepare_cached(LATEST)?;
                let parameters = named_params! {
                    ":tenant": search.tenant, ":project": search.project, ":kind": search.kind,
                    ":snapshot": snapshot, ":after": after, ":limit": more,
                };
                statement.query_map(parameters, |row| item(row, snapshot))?.collect()
            } else {
                let mut statement = transaction.prepare_cached(SEARCH)?;
                let parameters = named_params! {
                    ":match": match_expression(&search), ":tenant": search.tenant, ":project": search.project,
                    ":kind": search.kind, ":snapshot": snapshot, ":after": after, ":limit": more,
                };
                statement.query_map(parameters, |row| item(row, snapshot))?.collect()
            };
            Ok(Slice::of(rows?, search.limit))
        });
        read.await
    }

    pub(crate) async fn projects(
        &self,
        tenant: &str,
        after: Option<String>,
        limit: u32,
    ) -> Result<Slice<Project>, Unavailable> {
        let tenant = tenant.to_owned();
        let read = self.connections.read(move |transaction| {
            let mut statement = transaction.prepare_cached(PROJECTS)?;
            let parameters = named_params! {":tenant": tenant, ":after": after, ":limit": limit + 1};
            let rows: rusqlite::Result<Vec<_>> = statement.query_map(parameters, project)?.collect();
            Ok(Slice::of(rows?, limit))
        });
        read.await
    }

    pub(crate) async fn skills(
        &self,
        tenant: &str,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Slice<Skill>, Unavailable> {
        let tenant = tenant.to_owned();
        let read = self.connections.read(move |transaction| {
            let mut statement = transaction.prepare_cached(SKILLS)?;
            let parameters = named_params! {":tenant": tenant, ":before": before, ":limit": limit + 1};
            let rows: rusqlite::Result<Vec<_>> = statement.query_map(parameters, skill)?.collect();
            Ok(Slice::of(rows?, limit))
        });
        read.await
    }
}

/// The word that marks a tenant's items in the index. A letter first and no letter that a stem would lose.
pub(super) fn owner(tenant: &str) -> String {
    format!("t{}", hex(&Sha256::digest(tenant)[..8]))
}

/// All words, of the tenant's items. The words are letters and digits alone, and quoted besides.
fn match_expression(search: &Search) -> String {
    let words: Vec<String> = search.words.iter().map(|word| format!("\"{word}\"")).collect();
    format!("owner : {} AND words : ({})", owner(&search.tenant), words.join(" AND "))
}

fn item(row: &Row<'_>, snapshot: i64) -> rusqlite::Result<(Item, Position)> {
    let tags: String = row.get("tags")?;
    let item = Item {
        job_id: Uuid::from_bytes(row.get("job_id")?),
        position: row.get("position")?,
        project: row.get("project")?,
        kind: row.get("kind")?,
        text: row.get("text")?,
        tags: serde_json::from_str(&tags).unwrap_or_default(), // Written as a list of strings.
        created_at: timestamp(row.get("created_at")?),
    };
    Ok((item, Position::Search { snapshot, after: row.get("id")? }))
}

fn project(row: &Row<'_>) -> rusqlite::Result<(Project, Position)> {
    let name: String = row.get("name")?;
    let last_item_at = timestamp(row.get("last_item_at")?);
    Ok((Project { name: name.clone(), items: row.get("items")?, last_item_at }, Position::Name(name)))
}

fn skill(row: &Row<'_>) -> rusqlite::Result<(Skill, Position)> {
    let skill = Skill {
        text: row.get("text")?,
        times_learnt: row.get("times_learnt")?,
        first_learnt_at: timestamp(row.get("first_learnt_at")?),
        last_learnt_at: timestamp(row.get("last_learnt_at")?),
    };
    Ok((skill, Position::Below(row.get("id")?)))
}
