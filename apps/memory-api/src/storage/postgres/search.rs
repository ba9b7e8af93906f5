//! What is found in PostgreSQL.

use admit::Unavailable;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connections::{Failure, Parameter};
use super::{PostgresStorage, timestamp};
use crate::storage::{Item, Position, Project, Search, Skill, Slice};

const SEARCH: &str = include_str!("sql/search.sql");
const LATEST: &str = include_str!("sql/latest.sql");
const PROJECTS: &str = include_str!("sql/projects.sql");
const SKILLS: &str = include_str!("sql/skills.sql");
const LAST_ITEM: &str = "SELECT coalesce(max(id), 0) FROM memory.items";

impl PostgresStorage {
    pub(crate) async fn search(&self, search: Search) -> Result<Slice<Item>, Unavailable> {
        let (snapshot, after) = search.start();
        let snapshot = match snapshot {
            Some(snapshot) => snapshot,
            None => self.last_item().await?,
        };
        let (words, more) = (search.words.join(" "), i64::from(search.limit) + 1);
        let filters: [Parameter<'_>; 6] = [
            (&search.tenant, Type::TEXT),
            (&search.project, Type::TEXT),
            (&search.kind, Type::TEXT),
            (&snapshot, Type::INT8),
            (&after, Type::INT8),
            (&more, Type::INT8),
        ];
        let rows = if search.words.is_empty() {
            self.connections.query(LATEST, &filters).await?
        } else {
            let parameters: Vec<Parameter<'_>> =
                std::iter::once((&words as _, Type::TEXT)).chain(filters).collect();
            self.connections.query(SEARCH, &parameters).await?
        };
        slice(&rows, search.limit, |row| item(row, snapshot))
    }

    async fn last_item(&self) -> Result<i64, Unavailable> {
        let rows = self.connections.query(LAST_ITEM, &[]).await?;
        let last = rows.first().map(|row| row.try_get(0)).transpose().map_err(Failure::from)?;
        Ok(last.unwrap_or(0))
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
        before: Option<i64>,
        limit: u32,
    ) -> Result<Slice<Skill>, Unavailable> {
        let more = i64::from(limit) + 1;
        let parameters: [Parameter<'_>; 3] =
            [(&tenant, Type::TEXT), (&before, Type::INT8), (&more, Type::INT8)];
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

fn item(row: &Row, snapshot: i64) -> Result<(Item, Position), Failure> {
    let tags: &str = row.try_get("tags")?;
    let item = Item {
        job_id: row.try_get("job_id")?,
        position: row.try_get("position")?,
        project: row.try_get("project")?,
        kind: row.try_get("kind")?,
        text: row.try_get("text")?,
        tags: serde_json::from_str(tags).unwrap_or_default(), // Written as a list of strings.
        created_at: timestamp(row.try_get("created_at")?)?,
    };
    Ok((item, Position::Search { snapshot, after: row.try_get("id")? }))
}

fn project(row: &Row) -> Result<(Project, Position), Failure> {
    let name: String = row.try_get("name")?;
    let project = Project {
        name: name.clone(),
        items: row.try_get("items")?,
        last_item_at: timestamp(row.try_get("last_item_at")?)?,
    };
    Ok((project, Position::Name(name)))
}

fn skill(row: &Row) -> Result<(Skill, Position), Failure> {
    let skill = Skill {
        text: row.try_get("text")?,
        times_learnt: row.try_get("times_learnt")?,
        first_learnt_at: timestamp(row.try_get("first_learnt_at")?)?,
        last_learnt_at: timestamp(row.try_get("last_learnt_at")?)?,
    };
    Ok((skill, Position::Below(row.try_get("id")?)))
}
