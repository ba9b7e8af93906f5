//! What is found in SQLite.

use admit::Unavailable;
use rusqlite::{OptionalExtension, Row, Transaction, named_params};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{SqliteStorage, timestamp};
use crate::batch::hex;
use crate::storage::{Item, ItemName, Position, Project, Search, Skill, Slice};

const SEARCH: &str = include_str!("sql/search.sql");
const LATEST: &str = include_str!("sql/latest.sql");
const PROJECTS: &str = include_str!("sql/projects.sql");
const SKILLS: &str = include_str!("sql/skills.sql");
const LAST_ITEM: &str = include_str!("sql/last_item.sql");

impl SqliteStorage {
    pub(crate) async fn search(&self, search: Search) -> Result<Slice<Item>, Unavailable> {
        let read = self.connections.read(move |transaction| {
            let (last, after) = match search.start() {
                Some((last, after)) => (last, Some(after)),
                None => match last_item(transaction, &search.tenant)? {
                    Some(last) => (last, None),
                    None => return Ok(Slice::of(Vec::new(), search.limit)),
                },
            };
            let (last_job, after_job) =
                (last.job_id.into_bytes(), after.map(|after| after.job_id.into_bytes()));
            let (after_position, more) = (after.map(|after| after.position), search.limit + 1);
            let mut parameters = named_params! {
                ":tenant": search.tenant, ":project": search.project, ":kind": search.kind, ":limit": more,
                ":last_job": last_job, ":last_position": last.position,
                ":after_job": after_job, ":after_position": after_position,
            }
            .to_vec();
            let expression = match_expression(&search);
            let sql = if search.words.is_empty() {
                LATEST
            } else {
                parameters.push((":match", &expression));
                SEARCH
            };
            let mut statement = transaction.prepare_cached(sql)?;
            let rows = statement.query_map(&*parameters, |row| item(row, last))?;
            Ok(Slice::of(rows.collect::<rusqlite::Result<_>>()?, search.limit))
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
        before: Option<[u8; 32]>,
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

fn last_item(transaction: &Transaction<'_>, tenant: &str) -> rusqlite::Result<Option<ItemName>> {
    let mut statement = transaction.prepare_cached(LAST_ITEM)?;
    statement.query_row(named_params! {":tenant": tenant}, item_name).optional()
}

fn item_name(row: &Row<'_>) -> rusqlite::Result<ItemName> {
    Ok(ItemName { job_id: Uuid::from_bytes(row.get("job_id")?), position: row.get("position")? })
}

fn item(row: &Row<'_>, last: ItemName) -> rusqlite::Result<(Item, Position)> {
    let tags: String = row.get("tags")?;
    let name = item_name(row)?;
    let item = Item {
        name,
        project: row.get("project")?,
        kind: row.get("kind")?,
        text: row.get("text")?,
        tags: serde_json::from_str(&tags).unwrap_or_default(), // Written as a list of strings.
        created_at: timestamp(row.get("created_at")?),
    };
    Ok((item, Position::Search { last, after: name }))
}

fn project(row: &Row<'_>) -> rusqlite::Result<(Project, Position)> {
    let name: String = row.get("name")?;
    let last_item_at = timestamp(row.get("last_item_at")?);
    Ok((Project { name: name.clone(), items: row.get("items")?, last_item_at }, Position::Project(name)))
}

fn skill(row: &Row<'_>) -> rusqlite::Result<(Skill, Position)> {
    let skill = Skill {
        text: row.get("text")?,
        times_learnt: row.get("times_learnt")?,
        first_learnt_at: timestamp(row.get("first_learnt_at")?),
        last_learnt_at: timestamp(row.get("last_learnt_at")?),
    };
    Ok((skill, Position::Skill(row.get("digest")?)))
}
