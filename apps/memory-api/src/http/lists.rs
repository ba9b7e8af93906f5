//! `GET /memory/skills` and `GET /memory/projects`: what was learnt.

use axum::extract::{Extension, State};
use axum::response::Response;
use serde::Serialize;

use super::page::page;
use super::{App, time};
use crate::keys::Caller;
use crate::params::List;
use crate::storage::{Position, Project, Skill};

#[derive(Serialize)]
struct Skills {
    skills: Vec<SkillBody>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct SkillBody {
    text: String,
    times_learnt: i64,
    first_learnt_at: String,
    last_learnt_at: String,
}

#[derive(Serialize)]
struct Projects {
    projects: Vec<ProjectBody>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct ProjectBody {
    name: String,
    items: i64,
    last_item_at: String,
}

pub(super) async fn skills(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Extension(List { limit, from, binding }): Extension<List>,
) -> Response {
    let before = match from {
        Some(Position::Skill(digest)) => Some(digest),
        _ => None,
    };
    page(
        app.storage.skills(&caller.tenant, before, limit).await,
        binding,
        |skills: Vec<SkillBody>, next_cursor| Skills { skills, next_cursor },
    )
}

pub(super) async fn projects(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Extension(List { limit, from, binding }): Extension<List>,
) -> Response {
    let after = match from {
        Some(Position::Project(name)) => Some(name),
        _ => None,
    };
    page(
        app.storage.projects(&caller.tenant, after, limit).await,
        binding,
        |projects: Vec<ProjectBody>, next_cursor| Projects { projects, next_cursor },
    )
}

impl From<Skill> for SkillBody {
    fn from(skill: Skill) -> Self {
        Self {
            text: skill.text,
            times_learnt: skill.times_learnt,
            first_learnt_at: time(skill.first_learnt_at),
            last_learnt_at: time(skill.last_learnt_at),
        }
    }
}

impl From<Project> for ProjectBody {
    fn from(project: Project) -> Self {
        Self { name: project.name, items: project.items, last_item_at: time(project.last_item_at) }
    }
}
