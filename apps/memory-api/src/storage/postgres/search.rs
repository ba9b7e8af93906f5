//! What is found in PostgreSQL.

use admit::Unavailable;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connections::{Failure, Parameter};
use super::{PostgresStorage, timestamp};
use crate::storage::{Item, ItemName, Position, Project, Search, Skill, Slice};

const SEARCH: &str = include_str!("sql/search.sql");
const LATEST: &str = include_str!("sql/latest.sql");
const PROJECTS: &str = include_str!("sql/projects.sql");
const SKILLS: &str = include_str!("sql/skills.sql");
const LAST_ITEM: &str = include_str!("sql/last_item.sql");

impl PostgresStorage {
    pub(crate) async fn search(&self, search: Search) -> Result<Slice<Item>, Unavailable> {
        let (last, after) = match search.start() {
            Some((last, after)) => (last, Some(after)),
            None => match self.last_item(&search.tenant).await? {
                Some(last) => (last, None),
                None => return Ok(Slice::of(Vec::new(), search.limit)),
            },
        };
        let (after_job, after_position) =
            (after.map(|after| after.job_id), after.map(|after| after.position));
        let (words, more) = (search.words.join(" "), i64::from(search.limit) + 1);
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&search.tenant, Type::TEXT),
            (&search.project, Type::TEXT),
            (&search.kind, Type::TEXT),
            (&last.job_id, Type::UUID),
            (&last.position, Type::INT8),
            (&after_job, Type::UUID),
            (&after_position, Type::INT8),
            (&more, Type::INT8),
        ];
        let sql = if search.words.is_empty() {
            LATEST
        } else {
            parameters.push((&words, Type::TEXT));
            SEARCH
        };
        let rows = self.connections.query(sql, &parameters).await?;
        slice(&rows, search.limit, |row| item(row, last))
    }

    async fn last_item(&self, tenant: &str) -> Result<Option<ItemName>, Unavailable> {
        let rows = self.connections.query(LAST_ITEM, &[(&tenant, Type::TEXT)]).await?;
        Ok(rows.first().map(item_name).transpose()?)
    }

    pub(crate) async fn projects(
        &self,
        tenant: &str,
        after: Option<String>,
        limit: u32,
    ) -> Result<Slice<Project>, Unavailable> {
        let more = i64::from(limit) + 1;
        let parameters: [Parameter<'_>; 3] =
            [(&tenant, Type::TEXT), (&after, Type::TEXT), (&more, Type::INT8)];
        slice(&self.connections.query(PROJECTS, &parameters).await?, limit, project)
    }

    pub(crate) async fn skills(
        &self,
        tenant: &str,
        before: Option<[u8; 32]>,
        limit: u32,
    ) -> Result<Slice<Skill>, Unavailable> {
        let (before, more) = (before.as_ref().map(<[u8; 32]>::as_slice), i64::from(limit) + 1);
        let parameters: [Parameter<'_>; 3] =
            [(&tenant, Type::TEXT), (&before, Type::BYTEA), (&more, Type::INT8)];
        slice(&self.connections.query(SKILLS, &parameters).await?, limit, skill)
    }
}

fn slice<T>(
    rows: &[Row],
    limit: u32,
    read: impl Fn(&Row) -> Result<(T, Position), Failure>,
) -> Result<Slice<T>, Unavailable> {
    let rows: Result<Vec<_>, Failure> = rows.iter().map(read).collect();
    Ok(Slice::of(rows?, limit))
}

fn item_name(row: &Row) -> Result<ItemName, Failure> {
    Ok(ItemName { job_id: row.try_get("job_id")?, position: row.try_get("position")? })
}

fn item(row: &Row, last: ItemName) -> Result<(Item, Position), Failure> {
    let tags: &str = row.try_get("tags")?;
    let name = item_name(row)?;
    let item = Item {
        name,
        project: row.try_get("project")?,
        kind: row.try_get("kind")?,
        text: row.try_get("text")?,
        tags: serde_json::from_str(tags).unwrap_or_default(), // Written as a list of strings.
        created_at: timestamp(row.try_get("created_at")?)?,
    };
    Ok((item, Position::Search { last, after: name }))
}

fn project(row: &Row) -> Result<(Project, Position), Failure> {
    let name: String = row.try_get("name")?;
    let project = Project {
        name: name.clone(),
        items: row.try_get("items")?,
        last_item_at: timestamp(row.try_get("last_item_at")?)?,
    };
    Ok((project, Position::Project(name)))
}

fn skill(row: &Row) -> Result<(Skill, Position), Failure> {
    let digest: &[u8] = row.try_get("digest")?;
    let digest = digest.try_into().map_err(Failure::stored)?;
    let skill = Skill {
        text: row.try_get("text")?,
        times_learnt: row.try_get("times_learnt")?,
        first_learnt_at: timestamp(row.try_get("first_learnt_at")?)?,
        last_learnt_at: timestamp(row.try_get("last_learnt_at")?)?,
    };
    Ok((skill, Position::Skill(digest)))
}
